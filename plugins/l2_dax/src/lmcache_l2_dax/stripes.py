"""Several mapped devices as one medium: slots are dealt to them in turn, and so is the load.

device d: | metadata | slot d | slot d + n | slot d + 2n | ...      of n devices; the metadata is the same length on each
"""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import HEADER_BYTES
from lmcache_l2_dax.mapped_device import MappedDevice
from lmcache_object_slots import SlotGeometry


def striped_geometry(device_bytes: int, devices: int, slot_bytes: int, meta_bytes: int) -> SlotGeometry:
    """All slots of this number of devices of this size.  Raises ConfigError where not one fits."""
    each = SlotGeometry.fitting(device_bytes, slot_bytes, HEADER_BYTES, HEADER_BYTES, meta_bytes)
    return SlotGeometry(slot_bytes, each.count * devices, HEADER_BYTES, HEADER_BYTES, meta_bytes)


class Stripes:
    """Where each slot is.  The devices stay their owner's."""

    def __init__(self, geometry: SlotGeometry, devices: Sequence[MappedDevice]) -> None:
        self.geometry = geometry
        self.devices = tuple(devices)

    def address(self, slot: int) -> int:
        """Of the run in this slot, in this process."""
        row, device = divmod(slot, len(self.devices))
        return self.devices[device].address + self.geometry.run_at(row)

    def rows_behind(self, slot: int) -> int:
        """How many bytes of each device lie before the end of this slot."""
        return self.geometry.meta_bytes + (slot // len(self.devices) + 1) * self.geometry.slot_bytes
