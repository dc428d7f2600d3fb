"""Opens `nixl_store`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from lmcache_core import AdapterContext, Capability, ResourceError
from lmcache_l2_nixl.config import SLOT_BYTES, NixlStoreSettings
from lmcache_l2_nixl.nixl import Nixl
from lmcache_l2_nixl.pool_file import FilePool, PoolFile, file_geometry
from lmcache_l2_nixl.pool_medium import PoolMedium
from lmcache_l2_nixl.pool_objects import ObjectPool, ObjectRegion
from lmcache_l2_nixl.pool_owner import PoolOwner
from lmcache_object_slots import DURABLE, SlotAdapter, SlotGeometry, Volume, VolumeIdentity, meta_bytes_for, open_volume

CAPABILITIES: Final[Capability] = DURABLE
MAGIC: Final = "lmcache-nixl"
VERSION: Final = 1


class NixlStoreAdapter(SlotAdapter):
    """Objects in slots that NIXL moves."""


def open_nixl_store(settings: NixlStoreSettings, context: AdapterContext) -> NixlStoreAdapter:
    """Start NIXL, take the pool, recognise or make it, and learn from its checkpoint what it holds.  Raises ConfigError."""
    geometry = file_geometry(settings.pool_size, settings.slot_bytes or SLOT_BYTES, meta_bytes_for(settings.pool_size))
    nixl = Nixl(context, settings.backend, settings.backend_params)
    opened = _open_objects if settings.is_remote else _open_file
    try:
        return opened(settings, context, geometry, nixl)
    except OSError as error:
        nixl.close()
        raise ResourceError(
            f"{context.name}: the pool of backend '{settings.backend}' cannot be used ({error.strerror or error}); look at "
            "backend_params, and that the place can be reached and written to"
        ) from None
    except BaseException:
        nixl.close()
        raise


def _open_file(
    settings: NixlStoreSettings, context: AdapterContext, geometry: SlotGeometry, nixl: Nixl
) -> NixlStoreAdapter:
    params = settings.backend_params
    assert params.file_path is not None
    reserves = settings.slot_bytes is not None
    file = PoolFile.open(
        params.file_path, geometry, context,
        direct=params.use_direct_io, splits=settings.backend not in ("GDS", "GDS_MT"), reserves=reserves,
    )  # fmt: skip
    try:
        identity = VolumeIdentity(file.name, MAGIC, VERSION, geometry)
        if settings.overwrite_device:
            file.make_room()  # first: without it, the present content is not discarded
        volume = open_volume(file.meta, identity, overwrite=settings.overwrite_device, is_blank=file.is_blank)
        file.make_room()
        file.ownership.sign(context)
        medium = FilePool(geometry, nixl.thread, file, reserved=reserves)
    except BaseException:
        file.close()
        raise

    def release() -> None:
        if nixl.close():  # otherwise the file stays locked until this process ends: NIXL may still write there
            file.close()

    return _adapter(settings, context, medium, volume, release)


def _open_objects(
    settings: NixlStoreSettings, context: AdapterContext, geometry: SlotGeometry, nixl: Nixl
) -> NixlStoreAdapter:
    prefix = settings.object_prefix
    place = f"{context.name}: pool '{prefix}'"
    with ExitStack() as undo:
        owner = PoolOwner(context, nixl.thread, f"{prefix}.owner", place, settings.owner_lease_seconds)
        undo.callback(owner.close)
        owner.take()
        undo.callback(lambda: asyncio.run(owner.give_up()))
        region = ObjectRegion(nixl.thread, f"{prefix}meta", geometry.meta_bytes, owner)
        undo.callback(region.close)
        identity = VolumeIdentity(place, MAGIC, VERSION, geometry)
        is_new = region.is_new
        volume = open_volume(region, identity, overwrite=settings.overwrite_device, is_blank=lambda: is_new)
        medium = ObjectPool(geometry, nixl.thread, prefix, owner, is_new=is_new)
        undo.pop_all()  # from here on the adapter does it, whatever comes

    def release() -> None:
        with ExitStack() as last:  # from the last to the first, whatever one of them raises
            last.callback(nixl.close)
            last.callback(owner.close)
            last.callback(region.close)

    return _adapter(settings, context, medium, volume, release)


def _adapter(
    settings: NixlStoreSettings,
    context: AdapterContext,
    medium: PoolMedium,
    volume: Volume,
    release: Callable[[], None],
) -> NixlStoreAdapter:
    adapter = NixlStoreAdapter(context, medium, concurrency=settings.queue_depth, release=release, volume=volume)
    context.logger.info(
        "l2 pool opened adapter=%s backend=%s slots=%d slot_bytes=%d",
        context.name, settings.backend, volume.geometry.count, volume.geometry.slot_bytes,
    )  # fmt: skip
    return adapter
