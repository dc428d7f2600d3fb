"""The `nixl_store_dynamic` adapter: files are lmcache_object_files' matter, bytes NIXL's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lmcache_core import (
    AdapterContext,
    BorrowedBuffer,
    Capability,
    ObjectKey,
    Outcome,
    ResourceError,
)
from lmcache_l2_nixl.config import NixlStoreDynamicSettings
from lmcache_l2_nixl.nixl import Nixl, borrowed
from lmcache_l2_nixl.open_file import OpenFile
from lmcache_l2_nixl.pieces import file_transfers
from lmcache_object_files import (
    AsyncFileAdapter,
    FileSettings,
    ObjectFiles,
    PendingFile,
    accepts_direct,
    open_object_files,
    unusable,
)

CAPABILITIES: Final = (
    Capability.DELETE
    | Capability.USAGE
    | Capability.LIST
    | Capability.DURABLE
    | Capability.ZERO_COPY
    | Capability.ANY_LENGTH
)


class NixlStoreDynamicAdapter(AsyncFileAdapter):
    """Each object a file.  What may wait for the medium (opening, linking, looks at headers) is done on threads; the bytes
    are moved by NIXL, between the file and borrowed memory."""

    capabilities = CAPABILITIES

    def __init__(
        self, context: AdapterContext, files: ObjectFiles, nixl: Nixl, *, concurrency: int, direct: bool, splits: bool
    ) -> None:
        """Takes over files and NIXL: both are closed when all work has ended after `close`.  `splits`: a partial
        block goes through the page cache, where `direct`."""
        self._nixl = nixl
        self._direct = direct
        self._splits = splits
        super().__init__(context, files, concurrency)

    async def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        admitted: list[PendingFile | Outcome] = []
        try:
            await self.in_thread(lambda: admitted.append(self._files.admit(key, buffer.length)))
            (pending,) = admitted
            if isinstance(pending, Outcome):
                return pending
            try:
                await self._write(pending, buffer)
                return await self.in_thread(pending.publish)
            except OSError as error:
                return self._files.not_written(error, buffer.length)
        finally:
            for left in admitted:  # also of a call whose answer was lost
                if isinstance(left, PendingFile):
                    await self.in_thread(left.close)

    async def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        version = self._files.version(key)
        file = self._file(self._files.directory.path(key))
        try:
            try:
                await self.in_thread(file.find)
            except OSError as error:
                return self._refuse(key, await self.in_thread(self._files.not_opened, key, version, error))
            if file.size is not None and buffer.takes(file.size) and await self._read(file, buffer, file.size):
                return Outcome.DONE
        finally:
            await self.in_thread(file.close)
        return self._refuse(key, await self.in_thread(self._files.validation_failure, key, version))

    def counters(self) -> Mapping[str, int]:
        """Those of the files, and of the transfers."""
        return {**self._files.counters(), **self._nixl.thread.counters()}

    async def stopped(self) -> None:
        # Otherwise the directory stays locked until this process ends: NIXL may still write there.
        if await self.in_thread(self._nixl.close):
            await self.in_thread(self._files.close)

    async def _write(self, pending: PendingFile, buffer: BorrowedBuffer) -> None:
        file = self._file(pending.path)
        try:
            try:
                await self.in_thread(file.create, buffer.length)
            except FileNotFoundError:
                await self.in_thread(pending.make_directory)
                await self.in_thread(file.create, buffer.length)
            await self._nixl.thread.move(
                file_transfers(file.descriptors, 0, borrowed(buffer), writes=True, registers=True)
            )
        finally:
            await self.in_thread(file.close)

    async def _read(self, file: OpenFile, buffer: BorrowedBuffer, size: int) -> bool:
        """False: it was cut short meanwhile."""
        try:
            await self._nixl.thread.move(
                file_transfers(file.descriptors, 0, borrowed(buffer, 0, size), writes=False, registers=True)
            )
        except OSError:
            if await self.in_thread(file.has_changed):
                return False
            raise
        return True

    def _file(self, path: str) -> OpenFile:
        return OpenFile(path, direct=self._direct, splits=self._splits)

    def _refuse(self, key: ObjectKey, outcome: Outcome) -> Outcome:
        """Loading found it unfit.  Moving files is for `discard`, which no store of the same key can overlap."""
        if outcome in (Outcome.DAMAGED, Outcome.FOREIGN):
            self.reject(key, outcome)
        return outcome


def open_nixl_store_dynamic(settings: NixlStoreDynamicSettings, context: AdapterContext) -> NixlStoreDynamicAdapter:
    """Start NIXL and take the directory.  Raises ConfigError."""
    params = settings.backend_params
    assert params.file_path is not None
    nixl = Nixl(context, settings.backend, params)
    try:
        files = _files(settings, context)
    except ResourceError as error:
        nixl.close()
        raise ResourceError(str(error).replace("base_path", "backend_params.file_path")) from None
    try:
        is_direct = params.use_direct_io and _accepts_direct(files, context)
        adapter = NixlStoreDynamicAdapter(
            context, files, nixl, concurrency=settings.queue_depth, direct=is_direct,
            splits=settings.backend not in ("GDS", "GDS_MT"),
        )  # fmt: skip
    except BaseException:
        nixl.close()
        files.give_up()
        raise
    context.logger.info(
        "l2 directory opened adapter=%s path=%s backend=%s direct=%s",
        context.name, files.directory.root, settings.backend, is_direct,
    )  # fmt: skip
    return adapter


def _files(settings: NixlStoreDynamicSettings, context: AdapterContext) -> ObjectFiles:
    params = settings.backend_params
    assert params.file_path is not None
    return open_object_files(
        FileSettings(
            base_path=params.file_path,
            use_odirect=params.use_direct_io,
            max_capacity_gb=params.max_capacity_gb,
            persist_enabled=settings.persist_enabled,
        ),
        context,
    )


def _accepts_direct(files: ObjectFiles, context: AdapterContext) -> bool:
    directory = files.directory
    try:
        is_direct = accepts_direct(directory.temporaries)
    except OSError as error:
        raise unusable(directory.root, error, context) from None
    if not is_direct:
        context.logger.warning(
            "O_DIRECT is not taken here, the page cache is used adapter=%s path=%s", context.name, directory.root
        )
    return is_direct
