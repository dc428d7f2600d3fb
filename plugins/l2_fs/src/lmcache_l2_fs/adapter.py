"""The `fs` adapter."""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lmcache_core import (
    AdapterContext,
    BlockingL2Adapter,
    Capability,
    KeyPage,
    LentBuffer,
    ObjectKey,
    Outcome,
    ResourceError,
    Usage,
    media_path,
)
from lmcache_l2_fs.config import FsSettings
from lmcache_l2_fs.directory import ObjectDirectory
from lmcache_l2_fs.directory_lock import DirectoryLock
from lmcache_l2_fs.index import ObjectIndex
from lmcache_l2_fs.object_files import examine, is_in_the_way
from lmcache_l2_fs.object_io import ObjectIO, accepts_direct

CAPABILITIES = Capability.DELETE | Capability.USAGE | Capability.LIST | Capability.DURABLE
PUBLISH_ATTEMPTS: Final = 3
"""A store looks again when a file appears in its place while it writes; only outsiders can cause that."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PASSING = (errno.EINTR, errno.EAGAIN, errno.ESTALE)
"""A signal, a lock of the file system, a handle that a network file system has to look up again."""


class FsAdapter(BlockingL2Adapter):
    """Each object a file.  The index in memory says what is there; the file's header has the last word."""

    capabilities = CAPABILITIES
    contains_is_local = True  # the index

    def __init__(
        self, context: AdapterContext, workers: int, directory: ObjectDirectory, lock: DirectoryLock, index: ObjectIndex,
        io: ObjectIO,
    ) -> None:  # fmt: skip
        """Takes over the directory and its lock: both are given back when the last thread has ended after `close`."""
        self._directory = directory
        self._directory_lock = lock
        self._index = index
        self._io = io
        self._counts_lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._fill_index()
        super().__init__(context, workers)

    def store(self, key: ObjectKey, buffer: LentBuffer) -> Outcome:
        for _ in range(PUBLISH_ATTEMPTS):
            standing = self._standing(key, buffer.length)
            if standing is not Outcome.MISSING:
                return standing
            if not self._index.room.reserve(buffer.length):
                self._count("rejected_full")
                return Outcome.REJECTED
            written = False
            try:
                self._directory.publish(key, buffer.view, self._io)
                written = True
            except FileExistsError:
                continue
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                self._count("rejected_full")
                return Outcome.REJECTED
            finally:
                if written:
                    self._index.commit(key.object_id, buffer.length)
                else:
                    self._index.room.release(buffer.length)
            return Outcome.DONE
        return Outcome.FAILED

    def load(self, key: ObjectKey, buffer: LentBuffer) -> Outcome:
        sighting = self._index.seen(key.object_id)
        try:
            fd = self._io.open(self._directory.path(key))
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                self._index.drop_if_not_seen_since(key.object_id, sighting)  # a store may run beside
                return Outcome.MISSING
            if is_in_the_way(error):
                return self._refuse(key, Outcome.FOREIGN)
            raise
        try:
            fits = os.fstat(fd).st_size == buffer.length
            if fits and self._io.read(fd, buffer.view):
                return Outcome.DONE
        finally:
            os.close(fd)
        foreign = self._directory.examine(key).outcome is Outcome.FOREIGN
        return self._refuse(key, Outcome.FOREIGN if foreign else Outcome.DAMAGED)

    def contains(self, key: ObjectKey) -> bool:
        return key.object_id in self._index

    def delete(self, key: ObjectKey) -> Outcome:
        if key.object_id not in self._index:
            return Outcome.MISSING
        standing = self._directory.examine(key).outcome
        if standing is Outcome.FOREIGN:
            self._leave(key)
            return Outcome.MISSING
        if standing is Outcome.DAMAGED:
            self._set_aside(key)
            return Outcome.DONE
        removed = self._directory.remove(key)
        self._index.drop(key.object_id)
        return Outcome.DONE if removed else Outcome.MISSING

    def discard(self, key: ObjectKey, outcome: Outcome) -> bool:
        if key.object_id not in self._index:
            return True  # dealt with before; a store looks at what is there anyway
        standing = self._directory.examine(key).outcome
        if Outcome.FOREIGN in (outcome, standing) and standing is not Outcome.DAMAGED:
            self._leave(key)
        else:
            self._set_aside(key)
        return True

    def is_transient(self, error: Exception) -> bool:
        return super().is_transient(error) or (isinstance(error, OSError) and error.errno in _PASSING)

    def usage(self) -> Usage:
        return Usage(self._index.room.used_bytes, self._index.room.capacity_bytes, len(self._index))

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        """In the order of paths; the cursor is the last path that was looked at.  Reads one header page for each key."""
        keys: list[ObjectKey] = []
        for file in self._directory.files(cursor):
            if file.object_id is None or file.object_id not in self._index:
                continue
            finding = examine(f"{self._directory.root}/{file.path}")
            if finding.outcome is Outcome.DONE and finding.key and media_path(finding.key) == file.path:
                keys.append(finding.key)
                if len(keys) == limit:
                    return KeyPage(tuple(keys), file.path)
        return KeyPage(tuple(keys), None)

    def counters(self) -> Mapping[str, int]:
        """`objects` and `bytes` now; how often, since the start, a `foreign` or `damaged` file was met, or a store was
        `rejected_full`."""
        with self._counts_lock:
            counts = {name: self._counts[name] for name in ("foreign", "damaged", "rejected_full")}
        return {"objects": len(self._index), "bytes": self._index.room.used_bytes, **counts}

    def stopped(self) -> None:
        try:
            self._directory.close()
        finally:
            self._directory_lock.release()

    def _standing(self, key: ObjectKey, size: int) -> Outcome:
        """Is there room for a file of this object?  MISSING: yes; DONE: it is there already; REJECTED: something
        foreign is.  A damaged file is moved aside for the new one."""
        finding = self._directory.examine(key)
        match finding.outcome:
            case Outcome.DONE if finding.size == size:
                self._index.put(key.object_id, size)
                return Outcome.DONE
            case Outcome.MISSING:
                self._index.drop(key.object_id)
            case Outcome.FOREIGN:
                self._leave(key)
                return Outcome.REJECTED
            case _:
                self._set_aside(key)
        return Outcome.MISSING

    def _refuse(self, key: ObjectKey, outcome: Outcome) -> Outcome:
        """Loading found it unfit.  Moving files is for `discard`, which no store of the same key can overlap."""
        self.reject(key, outcome)
        return outcome

    def _set_aside(self, key: ObjectKey) -> None:
        self._directory.set_aside(key)
        self._index.drop(key.object_id)
        self._count("damaged")

    def _leave(self, key: ObjectKey) -> None:
        self._index.drop(key.object_id)
        self._count("foreign")

    def _count(self, name: str) -> None:
        with self._counts_lock:
            self._counts[name] += 1

    def _fill_index(self) -> None:
        for file in self._directory.files():
            if file.object_id is None or file.object_id in self._index:
                self._count("foreign")  # a second file of one name stands in a wrong folder
            else:
                self._index.put(file.object_id, file.size)


def open_fs(settings: FsSettings, context: AdapterContext) -> FsAdapter:
    """Take the directory, clear unfinished files, and learn what is there.  Raises ResourceError when the directory
    cannot be had."""
    root = settings.base_path.absolute()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = DirectoryLock.take(root, context)
    except OSError as error:
        raise _unusable(root, error, context) from None
    try:
        return _open_locked(root, lock, settings, context)
    except OSError as error:
        lock.release()
        raise _unusable(root, error, context) from None
    except BaseException:
        lock.release()
        raise


def _open_locked(root: Path, lock: DirectoryLock, settings: FsSettings, context: AdapterContext) -> FsAdapter:
    directory = ObjectDirectory(root, settings.relative_tmp_dir, context)
    direct = settings.use_odirect and accepts_direct(directory.temporaries)
    if settings.use_odirect and not direct:
        context.logger.warning(
            "O_DIRECT is not taken here, the page cache is used adapter=%s path=%s", context.name, root
        )
    io = ObjectIO(direct=direct, fsync=settings.fsync, read_ahead_bytes=settings.read_ahead_size)
    capacity_bytes = int(settings.max_capacity_gb * 2**30) if settings.max_capacity_gb else None
    adapter = FsAdapter(context, settings.num_workers, directory, lock, ObjectIndex(capacity_bytes), io)
    found = " ".join(f"{name}={count}" for name, count in adapter.counters().items())
    context.logger.info("l2 directory opened adapter=%s path=%s %s", context.name, root, found)
    return adapter


def _unusable(root: Path, error: OSError, context: AdapterContext) -> ResourceError:
    where = f"{context.name}: base_path '{root}'"
    if error.errno == errno.EXDEV:
        return ResourceError(f"{where}: relative_tmp_dir is on another file system; choose one on the same")
    return ResourceError(
        f"{where} cannot be used ({error.strerror}: '{error.filename or root}'); "
        "name one that this server may create and write to, where there are hard links"
    )
