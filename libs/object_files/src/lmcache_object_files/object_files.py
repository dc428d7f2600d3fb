"""What an adapter does with the objects in its directory, but for the moving of bytes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from lmcache_core import AdapterContext, Condition, KeyPage, ObjectKey, Outcome, Severity, Usage, media_path
from lmcache_object_files.file_check import FileCheck, check_file, is_full, is_in_the_way, size_of
from lmcache_object_files.medium_state import MediumState
from lmcache_object_files.object_directory import DirectoryLock, ObjectDirectory
from lmcache_object_files.object_index import FileVersion, ObjectIndex, PendingFile
from lmcache_object_files.placed_file import PlacedFile
from lmcache_object_files.recovery import Recovery
from lmcache_object_files.removal import remove_objects

LOOK_SECONDS: Final = 1.0
"""A file that an engine places is preceded by a look at the directory's lock that is at most this old."""

LEFT_ALONE_MAX: Final = 65_536
"""Files that are remembered as left alone, the newest ones."""

CountName = Literal["foreign", "damaged", "rejected_full"]


class FileCounts:
    """Since the start: `foreign` files, each once while it is remembered, times that a file was found `damaged`, and stores
    that were `rejected_full`.  Now: files of another format version that are known (`other_version`).  Any thread."""

    NAMES: Final[tuple[CountName, ...]] = ("foreign", "damaged", "rejected_full")

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all below
        self._counts: Counter[CountName] = Counter()
        self._foreign: dict[bytes, None] = {}
        self._other_versions: dict[bytes, None] = {}

    def add(self, name: CountName, count: int = 1) -> None:
        with self._lock:
            self._counts[name] += count

    def left_alone(self, object_id: bytes, *, other_version: bool) -> None:
        """The file in the place of this object is not to be read."""
        with self._lock:
            left = self._other_versions if other_version else self._foreign
            if not other_version and object_id not in left:
                self._counts["foreign"] += 1
            left[object_id] = None
            if len(left) > LEFT_ALONE_MAX:
                del left[next(iter(left))]

    def replaced(self, object_id: bytes) -> None:
        """The file in the place of this object is another one now, or has gone."""
        with self._lock:
            self._foreign.pop(object_id, None)
            self._other_versions.pop(object_id, None)

    def is_other_version(self, object_id: bytes) -> bool:
        return object_id in self._other_versions

    def now(self) -> dict[str, int]:
        with self._lock:
            counts: dict[str, int] = {name: self._counts[name] for name in self.NAMES}
            return counts | {"other_version": len(self._other_versions)}


class ObjectFiles:
    """Objects by key: the index in memory says what is there, the file's header has the last word.  Any thread, but for one
    key `admit`, `delete` and `discard` one at a time, as core calls an adapter; what is asked of the medium may block and
    raises OSError.

    Made by `open_object_files`.  Until `recovered`, what the index does not know is looked for on the medium."""

    def __init__(
        self, directory: ObjectDirectory, lock: DirectoryLock, index: ObjectIndex, context: AdapterContext, *,
        durable: bool, keep: bool,
    ) -> None:  # fmt: skip
        """Takes over the directory and its lock; `close` gives them back.  `durable`: a file that was published is on the
        medium; `keep`: objects outlive this."""
        self.directory = directory
        self._lock = lock
        self._index = index
        self._context = context
        self._durable = durable
        self._keep = keep
        self.counts = FileCounts()
        self._medium = MediumState(directory)
        self._next_look = context.clock.monotonic()
        self._recovery = Recovery(directory, index, lambda found: self.counts.add("foreign", found), context)

    # --- what is there

    @property
    def recovered(self) -> bool:
        """Is everything known that was there at the start?"""
        return self._index.complete

    def contains(self, key: ObjectKey) -> bool:
        object_id = key.object_id
        if object_id in self._index:
            return True
        if not self._index.may_hold(object_id):
            return False
        size = size_of(self.directory.path(key))
        if size is not None:
            self._index.adopt([(object_id, size)])
        return object_id in self._index

    def knows(self, key: ObjectKey) -> bool:
        """As far as the index goes, which never blocks: `contains` finds more until `recovered`."""
        return key.object_id in self._index

    def may_hold(self, key: ObjectKey) -> bool:
        """False: there is no such object, and `contains` does not ask the medium.  Never blocks."""
        return self._index.may_hold(key.object_id)

    def usage(self) -> Usage | None:
        """None until `recovered`."""
        if not self._index.complete:
            return None
        return Usage(self._index.room.used_bytes, self._index.room.capacity_bytes, len(self._index))

    def counters(self) -> Mapping[str, int]:
        """`objects` and `bytes` that are known now, `recovering` (1 until everything is known), and the counts."""
        return {
            "objects": len(self._index),
            "bytes": self._index.room.used_bytes,
            "recovering": int(not self._index.complete),
            **self.counts.now(),
        }

    def conditions(self) -> Sequence[Condition]:
        """What keeps objects from being stored, and what lies in their places.  Asks the medium, which may block; one thread
        at a time."""
        found = list(self._medium.conditions())
        if others := self.counts.now()["other_version"]:
            found.append(
                Condition(
                    "objects_of_other_version",
                    Severity.INFO,
                    f"{others} files hold objects of another format version, which are not read",
                    "nothing: each makes room when its object is stored again; or delete everything from this adapter",
                    counts={"files": others},
                )
            )
        return found

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        """In the order of paths; the cursor is the last path that was looked at.  Reads one header page for each key, and
        leaves out what cannot be read.  Raises OSError where nothing can."""
        found: dict[ObjectKey, int] = {}
        fault: OSError | None = None
        for file in self.directory.files(cursor):
            if file.object_id is None or not self._index.may_hold(file.object_id):
                continue
            try:
                checked = check_file(f"{self.directory.root}/{file.path}")
            except OSError as error:
                fault = fault or error
                continue
            if checked.outcome is Outcome.DONE and checked.key and media_path(checked.key) == file.path:
                found[checked.key] = checked.size
                if len(found) == limit:
                    return KeyPage(tuple(found), file.path, tuple(found.values()))
        if fault is not None and not found:
            raise fault
        return KeyPage(tuple(found), None, tuple(found.values()))

    # --- loading

    def version(self, key: ObjectKey) -> FileVersion | None:
        """To be taken before the file is opened; for `not_opened` and `validation_failure`."""
        return self._index.seen(key.object_id)

    def not_opened(self, key: ObjectKey, version: FileVersion | None, error: OSError) -> Outcome:
        """The outcome where the file could not be opened (O_NOFOLLOW): MISSING or FOREIGN.  Raises any other error."""
        if isinstance(error, FileNotFoundError):
            self.directory.require()
            self._index.drop_if_not_seen_since(key.object_id, version)  # a store may run beside
            return Outcome.MISSING
        if is_in_the_way(error):
            return Outcome.FOREIGN
        raise error

    def validation_failure(self, key: ObjectKey, version: FileVersion | None) -> Outcome:
        """Why the file that was opened is not the whole object: FOREIGN or DAMAGED, what to reject it as, too.  MISSING where
        it has gone, or another has taken its place since: that one must not be rejected for it."""
        standing = self.directory.check_file(key).outcome
        if standing in (Outcome.FOREIGN, Outcome.MISSING):
            return standing
        return Outcome.DAMAGED if self._index.seen(key.object_id) == version else Outcome.MISSING

    # --- storing and deleting

    def admit(self, key: ObjectKey, size: int) -> PendingFile | Outcome:
        """A file to write, with room for it; or DONE where it is there already, REJECTED where there is no room or a
        foreign file is there.  A damaged file is moved aside for the new one."""
        if self._index.may_hold(key.object_id):
            standing = self.standing(key, size)
            if standing is not Outcome.MISSING:
                return standing
        if not self._reserve(size):
            return Outcome.REJECTED
        return PendingFile(key, size, self.directory, self._index, durable=self._durable, standing=self.standing)

    def place(self, key: ObjectKey, size: int) -> PlacedFile | Outcome:
        """Room for a file that an engine writes and names in one operation, or REJECTED.  Asks nothing of the medium: where
        `must_look`, ask for its `standing` first."""
        if not self._reserve(size):
            return Outcome.REJECTED
        return PlacedFile(key, size, self.directory, self._index, durable=self._durable, standing=self.standing)

    def must_look(self, key: ObjectKey) -> bool:
        """Before `place`: there may be a file of this object, or it was not checked for LOOK_SECONDS whether the directory is
        still this server's.  Never blocks.  One thread."""
        now = self._context.clock.monotonic()
        if now < self._next_look:
            return self._index.may_hold(key.object_id)
        self._next_look = now + LOOK_SECONDS
        return True

    def standing(self, key: ObjectKey, size: int) -> Outcome:
        """Is there a place for a file of this object?  MISSING: yes; DONE: it is there already; REJECTED: something
        foreign is.  A damaged file is moved aside for the new one, one of another format version is removed."""
        checked = self.directory.check_file(key)
        if checked.other_version:
            self._remove(key)
            return Outcome.MISSING
        match checked.outcome:
            case Outcome.DONE if checked.size == size:
                self._index.put(key.object_id, size)
                return Outcome.DONE
            case Outcome.DONE:  # whole, of another length: serdes made it so, and the new one takes its place
                self._remove(key)
            case Outcome.MISSING:
                self._index.drop(key.object_id)
                self.counts.replaced(key.object_id)
            case Outcome.FOREIGN:
                self._leave(key, checked)
                return Outcome.REJECTED
            case _:
                self._set_aside(key)
        return Outcome.MISSING

    def not_written(self, error: OSError, size: int) -> Outcome:
        """The outcome where a file of `size` bytes could not be written or published: REJECTED where the medium is full.
        Raises any other error."""
        self._medium.write_failed(error, size)
        if not is_full(error):
            raise error
        self.counts.add("rejected_full")
        return Outcome.REJECTED

    def delete(self, key: ObjectKey) -> Outcome:
        if not self._index.may_hold(key.object_id) and not self.counts.is_other_version(key.object_id):
            return Outcome.MISSING
        checked = self.directory.check_file(key)
        if checked.outcome is Outcome.FOREIGN and not checked.other_version:
            self._leave(key, checked)
            return Outcome.MISSING
        if checked.outcome is Outcome.DAMAGED:
            self._set_aside(key)
            return Outcome.DONE
        return Outcome.DONE if self._remove(key) else Outcome.MISSING

    def delete_other_versions(self) -> int:
        """Remove every file of another format version.  Returns how many.  Reads one header page for each file; raises
        OSError, when all else is gone, where a file cannot be read or removed."""
        return remove_objects(self.directory, self._was_removed, only_other_versions=True)

    def discard(self, key: ObjectKey, outcome: Outcome) -> bool:
        """What was loaded is DAMAGED (moved aside) or FOREIGN (left alone, and not offered again)."""
        if not self._index.may_hold(key.object_id):
            return True  # dealt with before; a store looks at what is there anyway
        checked = self.directory.check_file(key)
        if checked.outcome is Outcome.MISSING:
            self._index.drop(key.object_id)
        elif Outcome.FOREIGN in (outcome, checked.outcome) and checked.outcome is not Outcome.DAMAGED:
            self._leave(key, checked)
        else:
            self._set_aside(key)
        return True

    # --- the beginning and the end

    def start(self) -> None:
        """Learn in the background what is there."""
        self._recovery.start()

    def close(self) -> None:
        """Give back the directory.  No other method may run or follow.  Where objects are not kept, it removes them first:
        every file whose name and header say that it is one.  A directory of another server is left as it is."""
        self._recovery.stop()
        try:
            if not self._keep and not self.directory.is_ours:
                self._context.logger.warning(
                    "objects are left, this server no longer has the directory adapter=%s path=%s",
                    self._context.name, self.directory.root,
                )  # fmt: skip
            elif not self._keep:
                removed = remove_objects(self.directory, self._was_removed)
                self._context.logger.info("objects removed adapter=%s files=%d", self._context.name, removed)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Give back the directory as it is: what an adapter does that could not be opened."""
        self._recovery.stop()
        try:
            self.directory.close()
        finally:
            self._lock.release()

    def _reserve(self, size: int) -> bool:
        if self._index.room.reserve(size):
            return True
        self.counts.add("rejected_full")
        return False

    def _remove(self, key: ObjectKey) -> bool:
        removed = self.directory.remove(key)
        self._was_removed(key.object_id)
        return removed

    def _was_removed(self, object_id: bytes) -> None:
        self._index.drop(object_id)
        self.counts.replaced(object_id)

    def _set_aside(self, key: ObjectKey) -> None:
        self.directory.set_aside(key)
        self._index.drop(key.object_id)
        self.counts.add("damaged")

    def _leave(self, key: ObjectKey, checked: FileCheck) -> None:
        self._index.drop(key.object_id)
        self.counts.left_alone(key.object_id, other_version=checked.other_version)
