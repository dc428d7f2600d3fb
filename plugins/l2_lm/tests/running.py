"""Store servers of tests, and a client that sends what it likes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from lmcache_l2_lm.frames import ANSWER_BYTES, Answer, Form, Request, Verb, pack_request, parse_answer
from lmcache_l2_lm.store_server.files import FileMedium
from lmcache_l2_lm.store_server.memory import MemoryMedium
from lmcache_l2_lm.store_server.server import StoreServer
from lmcache_l2_lm.store_server.values import Values

HOST: Final = "127.0.0.1"
BYTES_MAX: Final = 1 << 30
KEY: Final = b"org/model@2@1@abcdef12@bfloat16"
FORM: Final = Form(1, 3, (2, 3, 4, 8))


class Running(NamedTuple):
    """A store server in this process."""

    port: int
    values: Values


@contextmanager
def running(
    bytes_max: int = BYTES_MAX, folder: Path | None = None, connections_max: int = 64, port: int = 0
) -> Iterator[Running]:
    before = set(threading.enumerate())
    values = Values(bytes_max)
    files = FileMedium(folder) if folder else None
    for key, stored in files.recover() if files else ():
        assert values.adopt(key, stored)
    server = StoreServer(HOST, port, values, files or MemoryMedium(), connections_max=connections_max)
    server.start()
    try:
        yield Running(server.port, values)
    finally:
        server.stop()
        if files:
            files.close()
        left = [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("store-")]
        assert not left, left


class Client:
    """One connection, which looks at every byte."""

    def __init__(self, port: int, timeout_seconds: float = 10) -> None:
        self.socket: Final = socket.create_connection((HOST, port), timeout_seconds)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, verb: Verb, key: bytes = KEY, length: int = 0, value: bytes = b"", form: Form = FORM) -> None:
        self.socket.sendall(pack_request(Request(verb, key, length or len(value), form)) + value)

    def take(self, count: int) -> bytes:
        """Raises EOFError where the server has closed the connection."""
        data = b""
        while len(data) < count:
            try:
                part = self.socket.recv(count - len(data))
            except ConnectionResetError:
                part = b""
            if not part:
                raise EOFError
            data += part
        return data

    def answer(self) -> Answer:
        return parse_answer(self.take(ANSWER_BYTES))

    def put(self, key: bytes, value: bytes, form: Form = FORM) -> None:
        self.send(Verb.PUT, key, value=value, form=form)

    def exists(self, key: bytes = KEY) -> bool:
        self.send(Verb.EXIST, key)
        return self.answer().found

    def get(self, key: bytes = KEY) -> tuple[Form, bytes] | None:
        self.send(Verb.GET, key)
        answer = self.answer()
        return (answer.form, self.take(answer.length)) if answer.found else None

    @property
    def is_closed(self) -> bool:
        """Has the server closed it, or does within the time-out?"""
        try:
            return not self.socket.recv(1)
        except ConnectionResetError:
            return True
