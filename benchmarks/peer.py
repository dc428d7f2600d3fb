"""A bare socket that asks a server one thing after another, and checks the answers."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

import msgspec
import zmq

from benchmarks.frames import REGISTER, Frames, LookupCycle, StorePair
from benchmarks.prompts import Prompt
from demo.server_process import HOST
from lmcache_client.sockets import open_socket

ANSWER_SECONDS = 60


class BenchmarkError(Exception):
    """A server did not answer, or answered something that makes a figure meaningless."""


class Peer:
    """One connection, one request at a time.  With `checks` off an echo will do as the server."""

    def __init__(self, port: int, *, checks: bool = True) -> None:
        self._checks = checks
        self._context = zmq.Context()
        self._socket = open_socket(self._context, zmq.DEALER)
        self._socket.linger = 0
        self._socket.rcvtimeo = ANSWER_SECONDS * 1000
        self._socket.connect(f"tcp://{HOST}:{port}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._context.term()

    def ask(self, frames: Frames) -> Frames:
        self._socket.send_multipart(frames, copy=False)
        try:
            return self._socket.recv_multipart()
        except zmq.Again:
            raise BenchmarkError(f"no answer to operation {frames[1]!r} within {ANSWER_SECONDS} s") from None

    def seconds(self, frames: Frames) -> float:
        """How long the answer takes."""
        start_time = time.perf_counter()
        self.ask(frames)
        return time.perf_counter() - start_time

    def register(self) -> None:
        self.ask(REGISTER)

    def look_up(self, cycle: LookupCycle, expected: int | None = None) -> float:
        """A whole cycle, in which all chunks must be hit unless another number is expected.  Returns the seconds until
        the hits were known, which is what an engine waits for."""
        start_time = time.perf_counter()
        self.ask(cycle.lookup)
        answer = self.ask(cycle.wait)
        known = time.perf_counter() - start_time
        self.ask(cycle.free)
        self.ask(cycle.end)
        if self._checks:
            hits = msgspec.msgpack.decode(answer[2]) if len(answer) > 2 else None
            if hits != (wanted := cycle.chunks if expected is None else expected):
                raise BenchmarkError(f"a lookup of {cycle.chunks} chunks found {hits}, {wanted} were expected")
        return known

    def store(self, pair: StorePair, expected: int) -> None:
        """Reserve and commit; the slots are left as they are."""
        answer = self.ask(pair.prepare)
        committed = self.ask(pair.commit)
        if self._checks:
            slots = len(msgspec.msgpack.decode(answer[2])["context"]["slots"])
            if slots != expected or msgspec.msgpack.decode(committed[2]) is not True:
                raise BenchmarkError(f"a store of {expected} chunks got {slots} slots, commit said {committed[2]!r}")

    def store_prompt(self, prompt: Prompt, request_id: str, spelling: int = 0) -> None:
        """Put all chunks of a prompt into L1; it is not known in other spellings than this one then."""
        self.store(StorePair(prompt.token_ids(spelling), prompt.chunks, request_id), prompt.chunks)
