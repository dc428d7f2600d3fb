"""What a directory of objects has: an index within a size, and files on their way into it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, NewType, Self

from lmcache_core import ObjectKey, Outcome
from lmcache_l2_adapter import ByteLedger
from lmcache_object_files.object_directory import ObjectDirectory, remove_file

FileVersion = NewType("FileVersion", int)
"""A file as it was last seen: its size, and which of all versions it was.  Two of the same size differ."""

_TURN_BITS: Final = 30
_TURNS: Final = 1 << _TURN_BITS


class ObjectIndex:
    """Object id to file size, and the room that is left for more.  Any thread; its lock covers no I/O.

    An object costs an id, a number and a place in one table: about 140 bytes (tests/test_million_files.py).

    **While it is not complete** a walk adds what it finds (`adopt`), and only ids that were not added or removed since the
    beginning: an id that was removed stays removed until it is added again.  So what a walk saw before a delete
    cannot come back after it, and what is not known may still be there (`may_hold`)."""

    def __init__(self, capacity_bytes: int | None, *, complete: bool = False) -> None:
        """`complete`: what is there is what will be put in."""
        self.room = ByteLedger(capacity_bytes)
        self._lock = threading.Lock()  # guards all below; what is used of the room is the sum of the sizes
        self._files: dict[bytes, FileVersion] = {}
        self._turn = 0
        self._decided: set[bytes] = set()
        """Dropped since the beginning; empty once complete."""
        self._complete = complete

    def __contains__(self, object_id: bytes) -> bool:
        return object_id in self._files

    def __len__(self) -> int:
        return len(self._files)

    @property
    def complete(self) -> bool:
        """Is everything known that is there?"""
        return self._complete

    def may_hold(self, object_id: bytes) -> bool:
        """False: there is no such object.  True: there is one, or only a look at the medium can tell."""
        with self._lock:
            return object_id in self._files or not (self._complete or object_id in self._decided)

    def seen(self, object_id: bytes) -> FileVersion | None:
        """The newest version."""
        return self._files.get(object_id)

    def commit(self, object_id: bytes, size: int) -> None:
        """The file is there for which this room was reserved."""
        with self._lock:
            self.room.commit(size)
            self._replace(object_id, size)

    def put(self, object_id: bytes, size: int) -> None:
        """There is a file of this size, whether there is room for it or not."""
        with self._lock:
            self._put(object_id, size)

    def adopt(self, found: Iterable[tuple[bytes, int]]) -> list[bytes]:
        """What a look at the medium found, before `finish`.  Returns the ids that were known before."""
        known = []
        with self._lock:
            for object_id, size in found:
                if object_id in self._files:
                    known.append(object_id)
                elif not (self._complete or object_id in self._decided):
                    self._put(object_id, size)
        return known

    def finish(self) -> None:
        """Whatever was there at the beginning was adopted."""
        with self._lock:
            self._complete = True
            self._decided.clear()

    def drop(self, object_id: bytes) -> bool:
        """It is gone, or not to be offered.  False where it was not known."""
        with self._lock:
            return self._drop(object_id)

    def drop_if_not_seen_since(self, object_id: bytes, version: FileVersion | None) -> bool:
        """There was no file after this version.  False, and nothing is dropped, where there is a newer one."""
        with self._lock:
            if version is None or self._files.get(object_id) != version:
                return False
            return self._drop(object_id)

    def _put(self, object_id: bytes, size: int) -> None:
        old = self._files.get(object_id)
        if old is None or size_of_version(old) != size:
            self.room.adopt(size)
            self._replace(object_id, size)
        else:  # nothing is entered twice, not even for a moment: a writer would miss the room
            self._files[object_id] = self._new_version(size)

    def _drop(self, object_id: bytes) -> bool:
        if not self._complete:
            self._decided.add(object_id)
        file = self._files.pop(object_id, None)
        if file is None:
            return False
        self.room.drop(size_of_version(file))
        return True

    def _replace(self, object_id: bytes, size: int) -> None:
        # The new size was entered before: a writer must never see room that is not there.
        if (old := self._files.get(object_id)) is not None:
            self.room.drop(size_of_version(old))
        self._files[object_id] = self._new_version(size)

    def _new_version(self, size: int) -> FileVersion:
        self._turn = (self._turn + 1) % _TURNS
        return FileVersion(size << _TURN_BITS | self._turn)


def size_of_version(version: FileVersion) -> int:
    return version >> _TURN_BITS


PUBLISH_ATTEMPTS: Final = 3
"""A store looks again when a file appears in its place while it writes; only other programs can cause that."""


class PendingFile:
    """Space for one object is reserved, and `path` is for its whole file: create it with O_EXCL, write, `publish`.  A context
    manager, so that nothing is left of what was not published.  One thread at a time."""

    def __init__(
        self, key: ObjectKey, size: int, directory: ObjectDirectory, index: ObjectIndex, *, durable: bool,
        standing: Callable[[ObjectKey, int], Outcome],
    ) -> None:  # fmt: skip
        """`size` is reserved in the index.  `standing` says what to do about a file that is there already."""
        self.key = key
        self.size = size
        self.path = directory.temporary(key.object_id)
        self._directory = directory
        self._index = index
        self._durable = durable
        self._standing = standing
        self._published = False
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def make_directory(self) -> None:
        """What to do before another attempt where `path` could not be created because its directory has vanished."""
        self._directory.make_temporaries()

    def publish(self) -> Outcome:
        """Give the file, which is whole now, its name.  DONE too where another whole file of this object was faster;
        REJECTED where a foreign file is in its place.  Raises OSError."""
        for _ in range(PUBLISH_ATTEMPTS):
            try:
                self._directory.publish(self.path, self.key, durable=self._durable)
            except (FileExistsError, NotADirectoryError):
                standing = self._standing(self.key, self.size)
                if standing is not Outcome.MISSING:
                    return standing
                continue
            self._index.commit(self.key.object_id, self.size)
            self._published = True
            return Outcome.DONE
        return Outcome.FAILED

    def close(self) -> None:
        """Remove the temporary, and give back the room where nothing was published.  Again: nothing.  Raises OSError."""
        if self._closed:
            return
        self._closed = True
        try:
            remove_file(self.path)
        finally:
            if not self._published:
                self._index.room.release(self.size)
