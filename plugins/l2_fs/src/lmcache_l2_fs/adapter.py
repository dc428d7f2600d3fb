"""The `fs` adapter."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Final

from lmcache_core import AdapterContext, BorrowedBuffer, Capability, Condition, KeyPage, ObjectKey, Outcome, Usage
from lmcache_l2_adapter import BlockingL2Adapter
from lmcache_l2_fs.config import FsSettings
from lmcache_object_files import DIRECT_ALIGN, ObjectFiles, PendingFile, accepts_direct, open_object_files, unusable

# A FIFO or a link where a file belongs must neither block a thread nor lead elsewhere.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class ObjectIO:
    """How files are read and written here; the same for the life of an adapter.  Any thread.  Raises OSError."""

    def __init__(self, *, direct: bool, fsync: bool, read_ahead_bytes: int | None) -> None:
        """`read_ahead_bytes`: of a file that is read, where it is not read `direct`; None: all of it."""
        self.direct = direct
        self.fsync = fsync
        self._flags = os.O_DIRECT if direct else 0
        self._read_ahead_bytes = read_ahead_bytes

    def create(self, path: str, data: memoryview) -> None:
        """Write a new file.  What is left after an error is the caller's to remove."""
        fd = os.open(path, _CREATE | self._flags, 0o600)
        try:
            whole = len(data) - len(data) % DIRECT_ALIGN if self.direct else len(data)
            self._write(fd, data[:whole])
            if whole < len(data):
                with mmap.mmap(-1, DIRECT_ALIGN) as page:
                    page[: len(data) - whole] = bytes(data[whole:])
                    if os.pwrite(fd, page, whole) < DIRECT_ALIGN:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.ftruncate(fd, len(data))
            if self.fsync:
                os.fsync(fd)
        finally:
            os.close(fd)  # network file systems may report a full disk only here

    def open(self, path: str) -> int:
        return os.open(path, _READ | self._flags)

    def read(self, fd: int, data: memoryview) -> bool:
        """Fill `data` from the start of the file.  False when the file ends before."""
        whole = len(data) - len(data) % DIRECT_ALIGN if self.direct else len(data)
        if not self._read(fd, data[:whole]):
            return False
        if whole < len(data):
            with mmap.mmap(-1, DIRECT_ALIGN) as page:
                if os.preadv(fd, [page], whole) < len(data) - whole:
                    return False
                data[whole:] = page[: len(data) - whole]
        return True

    def _write(self, fd: int, data: memoryview) -> None:
        at = 0
        while at < len(data):
            written = os.pwrite(fd, data[at:], at)
            if self.direct:
                written -= written % DIRECT_ALIGN  # the rest is written again: an offset must stay aligned
            if written <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            at += written

    def _read(self, fd: int, data: memoryview) -> bool:
        if not self.direct:  # or the kernel fetches little by little, and waits for each part
            os.posix_fadvise(fd, 0, min(self._read_ahead_bytes or len(data), len(data)), os.POSIX_FADV_WILLNEED)
        at = 0
        while at < len(data):
            got = os.preadv(fd, [data[at:]], at)
            if self.direct:
                got -= got % DIRECT_ALIGN
            if got <= 0:
                return False
            at += got
        return True


CAPABILITIES: Final = (
    Capability.DELETE | Capability.USAGE | Capability.LIST | Capability.DURABLE | Capability.ANY_LENGTH
)

_PASSING: Final = (errno.EINTR, errno.EAGAIN, errno.ESTALE)
"""A signal, a lock of the file system, a handle that a network file system has to look up again."""


class FsAdapter(BlockingL2Adapter):
    """Each object a file; `ObjectFiles` knows which, and this moves the bytes."""

    capabilities = CAPABILITIES
    contains_is_local = True  # the index; only a key that the recovery has not come to yet is looked for on the medium

    def __init__(self, context: AdapterContext, workers: int, files: ObjectFiles, io: ObjectIO) -> None:
        """Takes over the files: they are closed when the last thread has ended after `close`."""
        self._files = files
        self._io = io
        super().__init__(context, workers)

    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        admitted = self._files.admit(key, buffer.length)
        if isinstance(admitted, Outcome):
            return admitted
        with admitted as pending:
            try:
                self._write(pending, buffer)
                return pending.publish()
            except OSError as error:
                return self._files.not_written(error, buffer.length)

    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        version = self._files.version(key)
        try:
            fd = self._io.open(self._files.directory.path(key))
        except OSError as error:
            return self._refuse(key, self._files.not_opened(key, version, error))
        try:
            status = os.fstat(fd)
            fits = stat.S_ISREG(status.st_mode) and buffer.takes(status.st_size)
            if fits and self._io.read(fd, buffer.view[: status.st_size]):
                return Outcome.DONE
        finally:
            os.close(fd)
        return self._refuse(key, self._files.validation_failure(key, version))

    def contains(self, key: ObjectKey) -> bool:
        return self._files.contains(key)

    def delete(self, key: ObjectKey) -> Outcome:
        return self._files.delete(key)

    def discard(self, key: ObjectKey, outcome: Outcome) -> bool:
        return self._files.discard(key, outcome)

    def is_transient(self, error: Exception) -> bool:
        return super().is_transient(error) or (isinstance(error, OSError) and error.errno in _PASSING)

    def usage(self) -> Usage | None:
        return self._files.usage()

    def conditions(self) -> Sequence[Condition]:
        return self._files.conditions()

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        return self._files.list_keys(cursor, limit)

    def delete_other_versions(self) -> int:
        return self._files.delete_other_versions()

    def counters(self) -> Mapping[str, int]:
        return self._files.counters()

    def stopped(self) -> None:
        self._files.close()

    def _write(self, pending: PendingFile, buffer: BorrowedBuffer) -> None:
        try:
            self._io.create(pending.path, buffer.view)
        except FileNotFoundError:
            pending.make_directory()
            self._io.create(pending.path, buffer.view)

    def _refuse(self, key: ObjectKey, outcome: Outcome) -> Outcome:
        """Loading found it unfit.  Moving files is for `discard`, which no store of the same key can overlap."""
        if outcome is not Outcome.MISSING:
            self.reject(key, outcome)
        return outcome


def open_fs(settings: FsSettings, context: AdapterContext) -> FsAdapter:
    """Take the directory and serve from it at once; what is there is learned in the background.  Raises ResourceError when
    the directory is not available."""
    files = open_object_files(settings, context)
    try:
        direct = settings.use_odirect and accepts_direct(files.directory.temporaries)
        if settings.use_odirect and not direct:
            context.logger.warning(
                "O_DIRECT is not taken here, the page cache is used adapter=%s path=%s",
                context.name,
                settings.base_path,
            )
        io = ObjectIO(direct=direct, fsync=settings.fsync, read_ahead_bytes=settings.read_ahead_size)
        return FsAdapter(context, settings.num_workers, files, io)
    except OSError as error:
        files.give_up()
        raise unusable(files.directory.root, error, context) from None
    except BaseException:
        files.give_up()
        raise
