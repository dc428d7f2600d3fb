"""A server that says what a test tells it to say."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from tests.remote.loop_server import LoopServer

USUAL: Final[Mapping[str, bytes]] = {
    "CLIENT": b"+OK\r\n",
    "INFO": b"$0\r\n\r\n",
    "GET": b"$-1\r\n",
    "SET": b"+OK\r\n",
    "SCAN": b"*2\r\n$1\r\n0\r\n*0\r\n",
    "EXISTS": b":0\r\n",
    "STRLEN": b":0\r\n",
    "GETRANGE": b"$0\r\n\r\n",
    "UNLINK": b":0\r\n",
}


class Scripted(LoopServer):
    """Answers each command from a table; a list is taken from its front, down to its last.  Empty: it hangs up.
    What is `ignored` has no answer at all."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, list[bytes]] = {}
        self.asked: list[str] = []
        self.ignored: set[str] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            count = int((await reader.readuntil(b"\r\n"))[1:])
            words = []
            for _ in range(count):
                length = int((await reader.readuntil(b"\r\n"))[1:])
                words.append((await reader.readexactly(length + 2))[:-2])
            verb = words[0].decode()
            is_owners = verb in ("GET", "SET", "EVAL", "UNLINK") and any(word.endswith(b".owner") for word in words)
            if is_owners:
                writer.write(USUAL.get(verb, b":1\r\n"))
                continue
            self.asked.append(verb)
            if verb in self.ignored:
                continue
            left = self.answers.get(verb) or [USUAL[verb]]
            answer = left.pop(0) if len(left) > 1 else left[0]
            if not answer:
                return
            writer.write(answer)
            await writer.drain()
