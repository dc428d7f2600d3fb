"""Opens the `raw_block` adapter."""

from __future__ import annotations

from typing import Final

from lmcache_core import AdapterContext, ConfigError, ResourceError
from lmcache_l2_raw_block.config import RawBlockSettings
from lmcache_l2_raw_block.device import Device
from lmcache_native.io import IoEngine
from lmcache_object_slots import (
    CheckpointTimes,
    DeviceMedium,
    SlotAdapter,
    SlotGeometry,
    Volume,
    VolumeIdentity,
    open_volume,
)

BYTES_IN_FLIGHT: Final = 4 * 2**30
"""All of them lie in L1, so this costs no memory; what bounds transfers is their number."""


class RawBlockAdapter(SlotAdapter):
    """Objects in slots of a device."""


def open_raw_block(settings: RawBlockSettings, context: AdapterContext) -> RawBlockAdapter:
    """Take the device, recognise or format it, and learn from its checkpoint what it holds.  Raises ConfigError."""
    path = settings.device_path.absolute()
    if settings.use_odirect and context.align_bytes % settings.block_align:
        context.logger.warning(
            "buffers of L1 are not aligned to block_align=%d, which costs a copy each adapter=%s; start the server with "
            "--l1-align-bytes %d",
            settings.block_align, context.name, settings.block_align,
        )  # fmt: skip
    device = Device.open(path, settings.block_align, context, direct=settings.use_odirect)
    try:
        volume = _volume(settings, device)
        device.ownership.sign(context)
        engine = _engine(settings, device.name)
    except OSError as error:
        device.close()
        raise ResourceError(f"{device.name} cannot be used: {error.strerror}; name another") from None
    except BaseException:
        device.close()
        raise
    return _adapter(settings, context, device, volume, engine)


def _volume(settings: RawBlockSettings, device: Device) -> Volume:
    if settings.capacity_bytes > device.size:
        raise ConfigError(
            f"{device.name} has {device.size} bytes, and capacity_bytes is {settings.capacity_bytes}; "
            "lower it, or set it to 0 for all there is"
        )
    geometry = SlotGeometry.fitting(
        settings.capacity_bytes or device.size,
        settings.slot_bytes, settings.header_bytes, settings.block_align, settings.meta_total_bytes,
    )  # fmt: skip
    identity = VolumeIdentity(device.name, settings.meta_magic, settings.meta_version, geometry)
    volume = open_volume(device.meta, identity, overwrite=settings.overwrite_device, is_blank=device.is_blank)
    if not settings.load_checkpoint_on_init:
        volume.forget(wipe=volume.wipes)
    return volume


def _engine(settings: RawBlockSettings, name: str) -> IoEngine:
    kind = "threads" if settings.io_engine == "posix" else settings.io_engine
    workers = settings.num_store_workers + settings.num_lookup_workers + settings.num_load_workers
    try:
        return IoEngine(kind, workers, _depth(settings), BYTES_IN_FLIGHT)
    except OSError as error:
        raise ResourceError(
            f"{name}: io_engine '{settings.io_engine}' is not available here ({error.strerror}); use posix, or auto"
        ) from None


def _depth(settings: RawBlockSettings) -> int:
    """Transfers that are under way at the same time."""
    if settings.io_engine in ("io_uring", "auto"):
        return settings.iouring_queue_depth
    return settings.num_store_workers + settings.num_lookup_workers + settings.num_load_workers


def _adapter(
    settings: RawBlockSettings, context: AdapterContext, device: Device, volume: Volume, engine: IoEngine
) -> RawBlockAdapter:
    medium = DeviceMedium(
        volume.geometry, device.fd, engine,
        direct=device.direct, sync=settings.fsync, zero_copy=settings.enable_zero_copy,
    )  # fmt: skip
    times = CheckpointTimes(
        settings.meta_enable_periodic, settings.meta_checkpoint_interval_sec, settings.meta_idle_quiet_ms / 1000
    )
    adapter = RawBlockAdapter(
        context, medium, concurrency=_depth(settings), release=device.close,
        volume=volume, times=times, verify=settings.meta_verify_on_load,
        devices={settings.device_path.absolute(): device.fd},
    )  # fmt: skip
    context.logger.info(
        "l2 device opened adapter=%s path=%s engine=%s direct=%s slots=%d",
        context.name, settings.device_path, engine.kind, device.direct, volume.geometry.count,
    )  # fmt: skip
    return adapter
