"""Opens the `fs_native` adapter, or says in one line what is missing."""

from __future__ import annotations

from lmcache_core import AdapterContext, ConfigError
from lmcache_l2_fs_native.adapter import FsNativeAdapter
from lmcache_l2_fs_native.arena_pinning import ArenaPinning
from lmcache_l2_fs_native.config import FsNativeSettings
from lmcache_l2_fs_native.direct_alignment import DirectAlignment, find_alignment
from lmcache_native.io import IoEngine
from lmcache_object_files import ObjectFiles, open_object_files, unusable

ENGINE_STOP_SECONDS = 1.0


def open_fs_native(settings: FsNativeSettings, context: AdapterContext) -> FsNativeAdapter:
    """Take the directory and serve from it at once; what is there is learned in the background.  Raises ConfigError where
    the engine that was asked for is not available, ResourceError where the directory is not."""
    engine = _start_engine(settings, context)  # before the directory: what fails here has changed nothing there
    try:
        files = open_object_files(settings, context)
    except BaseException:
        engine.close(ENGINE_STOP_SECONDS)
        raise
    try:
        alignment = _alignment(settings, files, context)
        pins = alignment.align_bytes > 0 and engine.kind == "io_uring"
        return FsNativeAdapter(
            context, files, engine, alignment,
            concurrency=settings.queue_depth, fsync=settings.fsync, read_ahead_bytes=settings.read_ahead_size,
            pinning=ArenaPinning(engine, context) if pins else None,
        )  # fmt: skip
    except BaseException as error:
        engine.close(ENGINE_STOP_SECONDS)
        files.give_up()
        if isinstance(error, OSError):
            raise unusable(files.directory.root, error, context) from None
        raise


def _start_engine(settings: FsNativeSettings, context: AdapterContext) -> IoEngine:
    try:
        return IoEngine(
            settings.io_engine, settings.num_workers, settings.queue_depth, settings.in_flight_max_mb * 2**20
        )
    except OSError as error:
        raise ConfigError(
            f"{context.name}: io_engine '{settings.io_engine}' is not available here ({error.strerror}); "
            "use 'auto' or 'threads', or a kernel and a sandbox that allow io_uring"
        ) from None


def _alignment(settings: FsNativeSettings, files: ObjectFiles, context: AdapterContext) -> DirectAlignment:
    if not settings.use_odirect:
        return DirectAlignment(0)
    align = find_alignment(files.directory.temporaries)
    if not align:
        context.logger.warning(
            "O_DIRECT is not taken here, the page cache is used adapter=%s path=%s", context.name, settings.base_path
        )
    elif context.align_bytes % align:
        context.logger.warning(
            "L1's slots are aligned to less than O_DIRECT wants here, so objects go through bounce buffers adapter=%s "
            "align_bytes=%d wanted_bytes=%d; raise --l1-align-bytes",
            context.name, context.align_bytes, align,
        )  # fmt: skip
    return DirectAlignment(align)
