"""The `dax` adapter: slots of mapped memory."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from lmcache_core import AdapterContext, ResourceError
from lmcache_l2_dax.config import DaxSettings
from lmcache_l2_dax.owned_device import OwnedDevice, open_owned
from lmcache_l2_dax.prefault import Prefault
from lmcache_l2_dax.stripe_members import StripedDevice, open_striped_volume
from lmcache_l2_dax.striped_medium import StripedMedium
from lmcache_l2_dax.stripes import Stripes, striped_geometry
from lmcache_native.io import IoEngine
from lmcache_object_slots import SlotAdapter, Volume, VolumeIdentity, meta_bytes_for

VERSION: Final = 1
"""Of where things lie on the devices."""
_QUEUED: Final = 2
"""Copies for each thread: one is under way, and the next is there when it ends."""
_NO_LIMIT: Final = 2**62


def open_dax(settings: DaxSettings, context: AdapterContext) -> SlotAdapter:
    """Take the devices, and find the objects in them or begin anew.  Raises ConfigError for sizes that do not fit together, and
    ResourceError where a device is not available or holds something else."""
    with contextlib.ExitStack() as undo:
        devices = []
        for path in settings.device_paths:
            devices.append(open_owned(path, settings.device_bytes, context))
            undo.callback(devices[-1].close)
        try:
            volume = _volume(settings, devices, context)
        except OSError as error:
            raise ResourceError(f"{context.name}: a device cannot be used ({error})") from None
        engines = _engines(settings, context)
        undo.pop_all()
    return _adapter(settings, devices, volume, engines, context)


def _engines(settings: DaxSettings, context: AdapterContext) -> tuple[IoEngine, IoEngine]:
    """For stores, and for loads."""
    storing, loading = settings.num_store_workers, settings.num_load_workers
    try:
        return _engine(storing), _engine(loading)
    except OSError as error:
        raise ResourceError(
            f"{context.name}: {storing + loading} threads for copies could not be started ({error.strerror}); "
            "lower num_store_workers and num_load_workers"
        ) from None


def _engine(workers: int) -> IoEngine:
    return IoEngine("threads", workers, _QUEUED * workers, _NO_LIMIT)


def _volume(settings: DaxSettings, devices: Sequence[OwnedDevice], context: AdapterContext) -> Volume:
    size = min(device.mapped.size_bytes for device in devices)
    meta_bytes = meta_bytes_for(max(size // settings.slot_bytes, 1) * len(devices))
    geometry = striped_geometry(size, len(devices), settings.slot_bytes, meta_bytes)
    identity = VolumeIdentity(devices[0].name, f"dax, {len(devices)} striped", VERSION, geometry)
    asked = [StripedDevice(device.name, device.region, device.is_blank) for device in devices]
    volume, new, stale = open_striped_volume(asked, identity, overwrite=settings.overwrite_device)
    for name in new:
        context.logger.info("l2 device is new among those that are striped adapter=%s %s", context.name, name)
    for name in stale:
        context.logger.warning(
            "l2 device was away while the others were used, its content is discarded adapter=%s %s", context.name, name
        )
    for device in devices:
        device.sign(context)
    if not settings.persist_enabled:
        volume.forget(wipe=volume.wipes)  # what is stored from now on is not to be found by a later start either
    return volume


def _adapter(
    settings: DaxSettings, devices: Sequence[OwnedDevice], volume: Volume, engines: tuple[IoEngine, IoEngine],
    context: AdapterContext,
) -> SlotAdapter:  # fmt: skip
    mapped = [device.mapped for device in devices]
    prefault = Prefault(mapped, f"l2-{context.name}")
    medium = StripedMedium(Stripes(volume.geometry, mapped), *engines, prefault)

    def release() -> None:
        prefault.close()
        for device in devices:
            device.close()

    context.logger.info(
        "l2 devices opened adapter=%s devices=%d slots=%d slot_bytes=%d persistent=%s map_sync=%s",
        context.name, len(devices), volume.geometry.count, volume.geometry.slot_bytes, settings.persist_enabled,
        all(device.synchronous for device in mapped),
    )  # fmt: skip
    return SlotAdapter(
        context, medium, concurrency=_QUEUED * (settings.num_store_workers + settings.num_load_workers),
        release=release, volume=volume if settings.persist_enabled else None,
        devices={device.path: device.descriptor for device in mapped},
    )  # fmt: skip
