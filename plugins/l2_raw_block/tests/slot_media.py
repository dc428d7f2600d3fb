"""Objects in slots behind an adapter's back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lmcache_core import HEADER_BYTES, ObjectHeader, ObjectKey, inspect, seal
from lmcache_devkit import Media
from lmcache_object_slots import DeviceMedium, SlotGeometry

PREFIX_BYTES = 16
"""Magic and format version: without them, a header page is not ours."""


class Slots(Media):
    """Runs in the slots of a file.  An object keeps the place where it was seen first."""

    def __init__(self, path: Path, geometry: SlotGeometry) -> None:
        self._path = path
        self._geometry = geometry
        self._places: dict[ObjectKey, int] = {}
        self._lengths: dict[ObjectKey, int] = {}

    def read(self, key: ObjectKey) -> bytes | None:
        run = self._run(key)
        if not any(run[:HEADER_BYTES]):
            return None
        header = inspect(run[:HEADER_BYTES])
        if isinstance(header, ObjectHeader):
            self._lengths[key] = HEADER_BYTES + header.stored_bytes
        return run[: self._lengths[key]]

    def write(self, key: ObjectKey, data: bytes) -> None:
        """What is behind the data is not what it was."""
        rest = self._run(key)[len(data) :]
        self._lengths[key] = len(data)
        self._put(key, data + bytes(byte ^ 0xFF for byte in rest))

    def remove(self, key: ObjectKey) -> None:
        self._put(key, bytes(HEADER_BYTES))

    def truncate(self, key: ObjectKey, length: int) -> None:
        """A slot whose page does not begin like ours is empty or foreign, so that much stays."""
        super().truncate(key, max(length, PREFIX_BYTES))

    def extend(self, key: ObjectKey, more: bytes) -> None:
        """A slot has no end, so it is the header that says it."""
        longer = bytearray(self._bytes(key) + more)
        seal(memoryview(longer), key, created_ns=1)
        self.write(key, bytes(longer))

    def _run(self, key: ObjectKey) -> bytes:
        with self._path.open("rb") as file:
            file.seek(self._place(key))
            return file.read(self._geometry.max_object_bytes)

    def _put(self, key: ObjectKey, data: bytes) -> None:
        with self._path.open("r+b") as file:
            file.seek(self._place(key))
            file.write(data)

    def _place(self, key: ObjectKey) -> int:
        if key not in self._places:
            self._places.update((found, slot) for slot, found in self.objects() if found not in self._places)
        return self._geometry.run_at(self._places[key])

    def objects(self) -> Iterator[tuple[int, ObjectKey]]:
        """Every slot whose header page is whole, and its key."""
        with self._path.open("rb") as file:
            for slot in range(self._geometry.count):
                file.seek(self._geometry.run_at(slot))
                header = inspect(file.read(HEADER_BYTES))
                if isinstance(header, ObjectHeader):
                    yield slot, header.key


def stall_medium(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """Within the context, a device answers nothing; like an engine, it keeps what was borrowed until it has."""
    go_on = threading.Event()
    go_on.set()
    for verb in ("write", "read", "clear_header", "read_headers"):
        method = getattr(DeviceMedium, verb)

        async def waiting(self: DeviceMedium, *arguments: Any, method: Any = method) -> Any:
            cancellation = None
            while not go_on.is_set():
                try:
                    await asyncio.sleep(0.005)
                except asyncio.CancelledError as error:
                    cancellation = error
            if cancellation is not None:
                raise cancellation
            return await method(self, *arguments)

        monkeypatch.setattr(DeviceMedium, verb, waiting)

    @contextmanager
    def stalled() -> Iterator[None]:
        go_on.clear()
        try:
            yield
        finally:
            go_on.set()

    return stalled
