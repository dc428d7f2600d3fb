"""The bytes of objects in files that are cut into slots, for requirements that change them behind the adapter's back."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from lmcache_core import HEADER_BYTES, ObjectHeader, ObjectKey, inspect, seal
from lmcache_core.model.object_header import MAGIC
from lmcache_devkit import Media

KEPT_BYTES: Final = 16
"""Magic and versions: without them, nothing would say that an object of ours was here."""


class Run(NamedTuple):
    """`length` bytes at `offset` of a file."""

    file: Path
    offset: int
    length: int


class SlotsOnFiles(Media):
    """A slot has no length of its own, so an object that is cut is one whose rest is older bytes, and one that is too long says
    so in its header."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self._known: dict[ObjectKey, Run] = {}

    def read(self, key: ObjectKey) -> bytes | None:
        run = self._found(key) or self._known.get(key)
        if run is None:
            return None
        with run.file.open("rb") as file:
            file.seek(run.offset)
            return file.read(run.length)

    def write(self, key: ObjectKey, data: bytes) -> None:
        run = self._known.get(key) or self._found(key)
        assert run is not None, "an object that was never stored has no slot"
        with run.file.open("r+b") as file:
            file.seek(run.offset)
            file.write(data)
        self._known[key] = Run(run.file, run.offset, len(data))

    def remove(self, key: ObjectKey) -> None:
        run = self._found(key) or self._known.get(key)
        if run is not None:
            with run.file.open("r+b") as file:
                file.seek(run.offset)
                file.write(bytes(HEADER_BYTES))

    def truncate(self, key: ObjectKey, length: int) -> None:
        data = self._bytes(key)
        cut = max(length, KEPT_BYTES)
        self.write(key, data[:cut] + bytes(byte ^ 0xFF for byte in data[cut:]))

    def extend(self, key: ObjectKey, more: bytes) -> None:
        longer = bytearray(self._bytes(key) + more)
        seal(memoryview(longer), key, created_ns=2)
        self.write(key, bytes(longer))

    def _found(self, key: ObjectKey) -> Run | None:
        """Where a header page names it.  Remembered, for when none does any more."""
        for run, header in self._headers():
            if header.key == key:
                self._known[key] = run
                return run
        return None

    def _headers(self) -> Iterator[tuple[Run, ObjectHeader]]:
        for path in self._files:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
                at = data.find(MAGIC)
                while at >= 0:
                    header = inspect(data[at : at + HEADER_BYTES])
                    if at % HEADER_BYTES == 0 and isinstance(header, ObjectHeader):
                        yield Run(path, at, HEADER_BYTES + header.stored_bytes), header
                    at = data.find(MAGIC, at + 1)
