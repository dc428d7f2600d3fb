"""A small L2 adapter that keeps every requirement: what the mutants are made from.

One file per object, under its object id; complete before it has its name."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from lmcache_core import (
    AdapterContext,
    BorrowedBuffer,
    Capability,
    Check,
    KeyPage,
    ObjectKey,
    Outcome,
    PluginSettings,
    Usage,
    inspect,
)
from lmcache_l2_adapter import BlockingL2Adapter
from plugins.devkit.tests.mutants.planted import Planted

CAPABILITIES = Capability.DELETE | Capability.USAGE | Capability.LIST | Capability.DURABLE


class FileSettings(PluginSettings):
    root: Annotated[Path, Field(description="Where the files are.")]
    capacity_bytes: Annotated[int | None, Field(description="Most that is kept.")] = None


class FileAdapter(BlockingL2Adapter):
    capabilities = CAPABILITIES
    go_on: ClassVar[threading.Event] = threading.Event()
    """While it is not set, no store and no load begins."""
    fails: ClassVar[threading.Event] = threading.Event()
    """While it is set, no file can be had."""

    def __init__(self, settings: FileSettings, context: AdapterContext) -> None:
        self.root, self.capacity_bytes = settings.root, settings.capacity_bytes
        self.root.mkdir(parents=True, exist_ok=True)
        for unfinished in self.root.glob("*.tmp"):
            unfinished.unlink()
        self.lock = threading.Lock()  # guards the two below
        self.sizes = {file.stem: file.stat().st_size for file in self.root.glob("*.kv")}
        self.reserved = 0
        self.numbers = itertools.count()
        super().__init__(context, workers=4)

    def name(self, key: ObjectKey) -> str:
        return key.object_id.hex()

    def path(self, key: ObjectKey) -> Path:
        if self.fails.is_set():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self.root / f"{self.name(key)}.kv"

    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        self.go_on.wait(30)
        if self.contains(key):
            return Outcome.DONE
        if not self.reserve(buffer.length):
            return Outcome.REJECTED
        self.write(key, buffer)
        with self.lock:
            self.reserved -= buffer.length
            self.sizes[self.name(key)] = buffer.length
        return Outcome.DONE

    def reserve(self, size: int) -> bool:
        with self.lock:
            if self.capacity_bytes is not None and self.used() + self.reserved + size > self.capacity_bytes:
                return False
            self.reserved += size
            return True

    def used(self) -> int:
        return sum(self.sizes.values())

    def write(self, key: ObjectKey, buffer: BorrowedBuffer) -> None:
        temporary = self.root / f"{next(self.numbers)}.tmp"
        temporary.write_bytes(buffer.view)
        os.rename(temporary, self.path(key))

    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        self.go_on.wait(30)
        try:
            with self.path(key).open("rb") as file:
                if os.fstat(file.fileno()).st_size != buffer.length:
                    return Outcome.DAMAGED
                return self.fill(file.fileno(), buffer)
        except FileNotFoundError:
            return Outcome.MISSING

    def fill(self, fd: int, buffer: BorrowedBuffer) -> Outcome:
        return Outcome.DONE if os.preadv(fd, [buffer.view], 0) == buffer.length else Outcome.DAMAGED

    def contains(self, key: ObjectKey) -> bool:
        return self.path(key).exists()

    def delete(self, key: ObjectKey) -> Outcome:
        path = self.path(key)
        with self.lock:
            self.sizes.pop(self.name(key), None)
        try:
            path.unlink()
        except FileNotFoundError:
            return Outcome.MISSING
        return Outcome.DONE

    def usage(self) -> Usage:
        with self.lock:
            return Usage(self.used(), self.capacity_bytes, len(self.sizes))

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        keys: list[ObjectKey] = []
        for file in sorted(self.root.glob("*.kv")):
            if file.name <= (cursor or ""):
                continue
            try:
                header = inspect(file.read_bytes()[:4096])
            except FileNotFoundError:
                continue
            if not isinstance(header, Check):
                keys.append(header.key)
            if len(keys) == limit:
                return KeyPage(tuple(keys), file.name)
        return KeyPage(tuple(keys), None)


FileAdapter.go_on.set()


PLANTED = Planted("requirements_of_mutants.py", FileAdapter)
killed_by = PLANTED.killed_by
