"""The `fs` adapter."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Final

from lmcache_core import (
    AdapterContext,
    BlockingL2Adapter,
    Capability,
    Condition,
    KeyPage,
    LentBuffer,
    ObjectKey,
    Outcome,
    Usage,
)
from lmcache_l2_fs.config import FsSettings
from lmcache_l2_fs.object_io import ObjectIO
from lmcache_object_files import ObjectFiles, PendingFile, accepts_direct, open_object_files, unusable

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

    def store(self, key: ObjectKey, buffer: LentBuffer) -> Outcome:
        admitted = self._files.admit(key, buffer.length)
        if isinstance(admitted, Outcome):
            return admitted
        with admitted as pending:
            try:
                self._write(pending, buffer)
                return pending.publish()
            except OSError as error:
                return self._files.not_written(error, buffer.length)

    def load(self, key: ObjectKey, buffer: LentBuffer) -> Outcome:
        sighting = self._files.sighting(key)
        try:
            fd = self._io.open(self._files.directory.path(key))
        except OSError as error:
            return self._refuse(key, self._files.not_opened(key, sighting, error))
        try:
            status = os.fstat(fd)
            fits = stat.S_ISREG(status.st_mode) and buffer.takes(status.st_size)
            if fits and self._io.read(fd, buffer.view[: status.st_size]):
                return Outcome.DONE
        finally:
            os.close(fd)
        return self._refuse(key, self._files.misfit(key, sighting))

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

    def _write(self, pending: PendingFile, buffer: LentBuffer) -> None:
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
    the directory cannot be had."""
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
