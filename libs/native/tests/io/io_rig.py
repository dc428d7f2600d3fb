"""An engine, memory of known addresses, and operations that are waited for."""

from __future__ import annotations

import ctypes
import mmap
import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from lmcache_native.io import IoEngine

Answered = tuple[int, bytes | None]
TIMEOUT_SECONDS = 60


class Memory:
    """Zeroed pages; `address` is that of the first."""

    def __init__(self, length: int) -> None:
        self._pages = mmap.mmap(-1, length)
        self.view = memoryview(self._pages)
        self.address = address_of(self._pages)

    def forbid(self, begin: int, length: int) -> None:
        """From here on these pages may not be touched; the kernel answers EFAULT."""
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        assert protect(ctypes.c_void_p(self.address + begin), ctypes.c_size_t(length), 0) == 0


def address_of(pages: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(pages))


class Rig:
    """Submits operations without their token, and waits for what they come to."""

    def __init__(self, engine: IoEngine) -> None:
        self.engine = engine
        self._tokens = count()
        self.answered: dict[int, Answered] = {}

    def submit(self, *operations: tuple[object, ...]) -> list[int]:
        tokens = [next(self._tokens) for _ in operations]
        whole = [(kind, token, *rest) for token, (kind, *rest) in zip(tokens, operations, strict=True)]
        self.engine.submit(whole)  # type: ignore[arg-type]  # any of the tuples
        return tokens

    def wait(self, tokens: list[int]) -> list[Answered]:
        while not self.answered.keys() >= set(tokens):
            ready, _, _ = select.select([self.engine.fileno()], [], [], TIMEOUT_SECONDS)
            assert ready, f"no answer in {TIMEOUT_SECONDS} s: {self.engine.counters()}"
            self.fetch()
        return [self.answered.pop(token) for token in tokens]

    def fetch(self) -> None:
        for token, result, digest in self.engine.answers():
            assert token not in self.answered, "answered twice"
            self.answered[token] = (result, digest)

    def do(self, *operations: tuple[object, ...]) -> list[Answered]:
        return self.wait(self.submit(*operations))

    def do_one(self, *operation: object) -> Answered:
        return self.do(operation)[0]


@contextmanager
def opened(path: Path, flags: int = os.O_RDWR) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)
