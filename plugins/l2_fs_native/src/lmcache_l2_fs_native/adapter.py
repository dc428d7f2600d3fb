"""The `fs_native` adapter: what becomes of one object.  Files are lmcache_object_files' matter, bytes the engine's."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Mapping
from typing import Final

from lmcache_core import (
    HEADER_BYTES,
    AdapterContext,
    BorrowedBuffer,
    Capability,
    ObjectKey,
    Outcome,
    check,
)
from lmcache_l2_fs_native.arena_pinning import LOOK_SECONDS, ArenaPinning
from lmcache_l2_fs_native.direct_alignment import DirectAlignment
from lmcache_native.async_io import AsyncIo
from lmcache_native.io import IoEngine
from lmcache_object_files import AsyncFileAdapter, ObjectFiles, PlacedFile

CAPABILITIES = (
    Capability.DELETE
    | Capability.USAGE
    | Capability.LIST
    | Capability.DURABLE
    | Capability.ZERO_COPY
    | Capability.VERIFIES
    | Capability.ANY_LENGTH
)
PUBLISH_ATTEMPTS: Final = 4
"""A store writes again after directories were made, or when what stood in its place was moved aside."""
STOP_SECONDS: Final = 5.0
KERNEL_DECIDES_BYTES_MAX: Final = 16 * 2**20 + HEADER_BYTES
"""Up to here a file comes faster, and for less CPU, when the kernel is not advised what to fetch ahead of a read: measured
1.2 to 2.1 times as fast with 4, 8 and 16 MiB.  With 32 MiB it took 1.4 to 3.5 times the CPU, and was slower in one of two
runs."""


class FsNativeAdapter(AsyncFileAdapter):
    """Each object a file.  One loop gives whole batches to the engine and hears of them when their bytes have passed; what
    else may wait for the medium (directories, deletes, looks at headers) is done on threads beside it."""

    capabilities = CAPABILITIES

    def __init__(
        self, context: AdapterContext, files: ObjectFiles, engine: IoEngine, alignment: DirectAlignment, *,
        concurrency: int, fsync: bool, read_ahead_bytes: int | None, pinning: ArenaPinning | None,
    ) -> None:  # fmt: skip
        """Takes over directory and engine: both are closed when all work has ended after `close`.  `read_ahead_bytes`
        of a file that goes through the page cache; None: the kernel decides for files up to KERNEL_DECIDES_BYTES_MAX, and is
        advised to fetch all of longer ones.  `pinning` None: L1 is not registered."""
        self._engine = engine
        self._alignment = alignment
        self._sync = int(fsync)
        self._read_ahead_bytes = read_ahead_bytes
        self._pinning = pinning
        super().__init__(context, files, concurrency)

    async def started(self) -> None:
        self._io = AsyncIo(self._engine)
        self._pinned = asyncio.create_task(self._pin())

    async def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        if self._files.must_look(key):
            standing = await self.in_thread(self._files.standing, key, buffer.length)
            if standing is not Outcome.MISSING:
                return standing
        file = self._files.place(key, buffer.length)
        return file if isinstance(file, Outcome) else await self._place(file, buffer)

    async def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        version = self._files.version(key)
        path = self._files.directory.path(key)
        try:
            length = await self.in_thread(_length_of, path) if buffer.at_most else buffer.length
            if not buffer.takes(length):
                return await self.in_thread(self._files.validation_failure, key, version)
            _, digest = await self._io.read_file(
                os.fsencode(path), buffer.address, length, self._alignment.of(length), digest_from=HEADER_BYTES,
                read_ahead_bytes=self._read_ahead(length),
            )  # fmt: skip
        except OSError as error:
            if error.errno != errno.ENODATA:
                return await self.in_thread(self._files.not_opened, key, version, error)
        else:
            if check(buffer.view, key, digest, at_most=buffer.at_most).outcome is Outcome.DONE:
                return Outcome.DONE
        return await self.in_thread(self._files.validation_failure, key, version)

    def counters(self) -> Mapping[str, int]:
        """Those of the files, and of the engine: `engine_io_uring` (1, or 0 for threads), and `engine_` before each of its
        own (`operations`, `bytes_read`, `bytes_written`, `bounced`, `errors`, `in_flight`, `waiting`)."""
        counts = {f"engine_{name}": count for name, count in self._engine.counters().items()}
        return {**self._files.counters(), "engine_io_uring": int(self._engine.kind == "io_uring"), **counts}

    async def stopped(self) -> None:
        self._pinned.cancel()
        await asyncio.wait((self._pinned,))
        if not await self._io.close(STOP_SECONDS):
            # The directory stays locked until this process ends: its engine may still write there.
            self.context.logger.error("the i/o engine did not stop adapter=%s; it is left behind", self.context.name)
            return
        await self.in_thread(self._files.close)

    def _read_ahead(self, length: int) -> int:
        """0: nothing is said to the kernel."""
        return self._read_ahead_bytes or (0 if length <= KERNEL_DECIDES_BYTES_MAX else length)

    async def _pin(self) -> None:
        while self._pinning is not None and not await self.in_thread(self._pinning.proceed):
            await asyncio.sleep(LOOK_SECONDS)

    async def _place(self, file: PlacedFile, buffer: BorrowedBuffer) -> Outcome:
        try:
            return await self._write(file, buffer)
        except asyncio.CancelledError:
            # The engine has ended it, and its answer was lost.  What is there is DONE.
            if await self.in_thread(file.find_out):
                return Outcome.DONE
            raise
        except OSError as error:
            return self._files.not_written(error, buffer.length)
        finally:
            file.end()

    async def _write(self, file: PlacedFile, buffer: BorrowedBuffer) -> Outcome:
        """Have the engine write it and give it its name.  Whatever comes of it, the engine leaves no temporary."""
        for _ in range(PUBLISH_ATTEMPTS):
            try:
                if not file.has_directories():
                    await self.in_thread(file.make_directories)
                await self._io.write_file(
                    os.fsencode(file.temporary), os.fsencode(file.path), buffer.address, buffer.length,
                    self._alignment.of(buffer.length), sync=self._sync,
                )  # fmt: skip
            except FileNotFoundError:
                await self.in_thread(file.make_directories)
            except (FileExistsError, NotADirectoryError):
                standing = await self.in_thread(file.make_room)
                if standing is not Outcome.MISSING:
                    return standing
            else:
                file.placed()
                return Outcome.DONE
        return Outcome.FAILED


def _length_of(path: str) -> int:
    """Of the file itself, not of what a link names.  Raises OSError."""
    return os.stat(path, follow_symlinks=False).st_size
