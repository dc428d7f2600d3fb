"""A durable adapter of a few lines, right or with one bug that only a kill brings to light."""

from __future__ import annotations

import os
import threading
import time
from enum import StrEnum
from pathlib import Path
from typing import Final

from lmcache_core import (
    HEADER_BYTES,
    AdapterContext,
    BorrowedBuffer,
    Capability,
    Check,
    KeyPage,
    ObjectHeader,
    ObjectKey,
    Offer,
    Outcome,
    PluginSettings,
    Usage,
    inspect,
)
from lmcache_l2_adapter import BlockingL2Adapter

WINDOW_SECONDS: Final = 0.0005
"""So long is a store open to a kill between its two halves."""


class Bug(StrEnum):
    NONE = "none"
    HEADER_FIRST = "header_first"
    """The header page is written before the payload, under the object's own name."""
    DONE_TOO_EARLY = "done_too_early"
    """A store answers with its bytes still in memory; those of the last two are."""
    DELETES_IN_MEMORY = "deletes_in_memory"
    """A delete forgets the object, and leaves it on the medium."""
    COUNTS_FILES_TWICE = "counts_files_twice"
    """After a restart, usage is wrong."""
    LISTS_TOO_LITTLE = "lists_too_little"
    """After a restart, the listing lacks an object."""
    KNOWS_TOO_EARLY = "knows_too_early"
    """After a restart, it tells its usage while it still misses what it has not looked at."""


class BuggySettings(PluginSettings):
    root: Path
    bug: Bug
    slots: int = 60
    learns_seconds: float = 0.0
    """So long after a start it misses what was there before."""


class BuggyAdapter(BlockingL2Adapter):
    capabilities = Capability.DELETE | Capability.USAGE | Capability.LIST | Capability.DURABLE
    contains_is_local = True

    def __init__(self, settings: BuggySettings, context: AdapterContext) -> None:
        self._root = settings.root
        self._bug = settings.bug
        self._slots = settings.slots
        self._late = threading.Lock()  # guards the next
        self._unwritten: list[tuple[ObjectKey, bytes]] = []
        self._root.mkdir(exist_ok=True)
        for path in self._root.glob("*.tmp"):
            path.unlink()
        there = {header.key.object_id: header for path in self._root.iterdir() if (header := _header(path))}
        self._found = list(there)
        self._learning = threading.Lock()  # guards the index, until it is learned
        self._is_learned = not settings.learns_seconds
        self._gone: set[bytes] = set()
        self._index: dict[bytes, ObjectHeader] = there if self._is_learned else {}
        super().__init__(context, workers=4)
        if not self._is_learned:
            timer = threading.Timer(settings.learns_seconds, self._learn, (there,))
            timer.daemon = True
            timer.start()

    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        if len(self._index) >= self._slots:
            return Outcome.REJECTED
        data = bytes(buffer.view)
        if self._bug is Bug.DONE_TOO_EARLY:
            with self._late:
                self._unwritten.append((key, data))
                if len(self._unwritten) > 2:
                    self._write(*self._unwritten[0])
                    del self._unwritten[0]
        else:
            self._write(key, data)
        header = inspect(data[:HEADER_BYTES])
        assert isinstance(header, ObjectHeader)
        self._index[key.object_id] = header
        return Outcome.DONE

    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        if key.object_id not in self._index:
            return Outcome.MISSING
        with self._late:
            waiting = [data for other, data in self._unwritten if other == key]
        data = waiting[0] if waiting else self._path(key).read_bytes()
        if len(data) != buffer.length:
            return Outcome.DAMAGED
        buffer.view[:] = data
        return Outcome.DONE

    def contains(self, key: ObjectKey) -> bool:
        return key.object_id in self._index

    def delete(self, key: ObjectKey) -> Outcome:
        with self._learning:
            self._gone.add(key.object_id)
            if self._index.pop(key.object_id, None) is None:
                return Outcome.MISSING
        with self._late:
            self._unwritten = [each for each in self._unwritten if each[0] != key]
        if self._bug is not Bug.DELETES_IN_MEMORY:
            self._path(key).unlink(missing_ok=True)
        return Outcome.DONE

    def usage(self) -> Usage | None:
        if not self._is_learned and self._bug is not Bug.KNOWS_TOO_EARLY:
            return None
        lengths = [HEADER_BYTES + header.stored_bytes for header in list(self._index.values())]
        twice = len(self._found) if self._bug is Bug.COUNTS_FILES_TWICE else 0
        return Usage(sum(lengths), None, len(lengths) + twice)

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        hidden = self._found[:1] if self._bug is Bug.LISTS_TOO_LITTLE else []
        names = sorted(each.hex() for each in list(self._index) if each not in hidden and each.hex() > (cursor or ""))
        keys = tuple(self._index[bytes.fromhex(name)].key for name in names[:limit])
        return KeyPage(keys, names[limit - 1] if len(names) > limit else None)

    def _learn(self, there: dict[bytes, ObjectHeader]) -> None:
        with self._learning:
            for object_id in there.keys() - self._gone:
                self._index.setdefault(object_id, there[object_id])
            self._is_learned = True

    def _write(self, key: ObjectKey, data: bytes) -> None:
        path = self._path(key)
        torn = self._bug is Bug.HEADER_FIRST
        target = path if torn else path.with_suffix(".tmp")
        with target.open("wb", buffering=0) as file:
            os.truncate(file.fileno(), len(data))
            file.write(data[:HEADER_BYTES])
            time.sleep(WINDOW_SECONDS)
            file.write(data[HEADER_BYTES:])
        if not torn:
            target.rename(path)

    def _path(self, key: ObjectKey) -> Path:
        return self._root / f"{key.object_id.hex()}.kv"


def _header(path: Path) -> ObjectHeader | None:
    with path.open("rb") as file:
        header = inspect(file.read(HEADER_BYTES))
    return None if isinstance(header, Check) else header


OFFER: Final = Offer(
    name="buggy",
    summary="Each object a file, and one bug",
    settings="tests.durability.planted_bugs:BuggySettings",
    open="tests.durability.planted_bugs:BuggyAdapter",
    capabilities=BuggyAdapter.capabilities,
)
