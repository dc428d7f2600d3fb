"""A file that an engine writes and names in one operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lmcache_core import ObjectKey, Outcome
from lmcache_object_files.object_directory import ObjectDirectory
from lmcache_object_files.object_index import ObjectIndex


class PlacedFile:
    """Room for one object is reserved until `placed` or `end`, whichever comes first.  The engine is to create `temporary`
    with O_EXCL, write it, link it to `path`, never over something, and remove it.  One thread at a time; what asks something
    of the medium may block and raises OSError."""

    def __init__(
        self, key: ObjectKey, size: int, directory: ObjectDirectory, index: ObjectIndex, *, durable: bool,
        standing: Callable[[ObjectKey, int], Outcome],
    ) -> None:  # fmt: skip
        """`size` is reserved in the index.  `standing` says what to do about a file that is there already."""
        self.key: Final = key
        self.size: Final = size
        self.temporary: Final = directory.temporary(key.object_id)
        self.path: Final = directory.path(key)
        self._directory = directory
        self._index = index
        self._durable = durable
        self._standing = standing
        self._ended = False

    def has_directories(self) -> bool:
        """False: make them first.  The engine would find them missing only when it has written the file."""
        return self._directory.has_place(self.path, durable=self._durable)

    def make_directories(self) -> None:
        """Those of the temporary and of the path.  Also where the engine found one of them missing."""
        self._directory.make_temporaries()
        self._directory.make_place(self.path, durable=self._durable)

    def make_room(self) -> Outcome:
        """Something stood at the path: MISSING where there is room now; DONE, or REJECTED where something foreign does."""
        return self._standing(self.key, self.size)

    def placed(self) -> None:
        """The file is there."""
        self._index.commit(self.key.object_id, self.size)
        self._ended = True

    def find_out(self) -> bool:
        """Is it there?  The engine's answer was lost: look."""
        checked = self._directory.check_file(self.key)
        is_there = checked.outcome is Outcome.DONE and checked.size == self.size
        if is_there:
            self.placed()
        return is_there

    def end(self) -> None:
        """Give the room back where nothing was placed.  Again: nothing."""
        if not self._ended:
            self._ended = True
            self._index.room.release(self.size)
