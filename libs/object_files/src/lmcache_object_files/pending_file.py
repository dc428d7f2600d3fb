"""A file that is being written, until it has its name."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from lmcache_core import ObjectKey, Outcome
from lmcache_object_files.object_directory import ObjectDirectory, remove_file
from lmcache_object_files.object_index import ObjectIndex

PUBLISH_ATTEMPTS: Final = 3
"""A store looks again when a file appears in its place while it writes; only outsiders can cause that."""


class PendingFile:
    """Room for one object is reserved, and `path` is for its whole file: create it with O_EXCL, write, `publish`.  A context
    manager, so that whatever happens nothing is left of what was not published.  One thread at a time."""

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
