"""Fixed slots on a medium: what adapters that keep objects in slots share.

medium = DeviceMedium(geometry, fd, IoEngine("auto", 4, 64, 2**28), direct=True, sync=False)
volume = open_volume(FileRegion(meta_fd), identity, overwrite=False, is_blank=probe)
adapter = SlotAdapter(context, medium, concurrency=64, release=close_descriptors, volume=volume)
"""

from lmcache_object_slots.checkpoint import meta_bytes_for
from lmcache_object_slots.device_medium import DeviceMedium
from lmcache_object_slots.geometry import SlotGeometry
from lmcache_object_slots.medium import MetaRegion, SlotMedium
from lmcache_object_slots.meta_regions import FileRegion
from lmcache_object_slots.ownership import Ownership
from lmcache_object_slots.slot_adapter import DURABLE, VOLATILE, SlotAdapter
from lmcache_object_slots.slot_index import SlotIndex
from lmcache_object_slots.volume import Volume, VolumeIdentity, open_volume
from lmcache_object_slots.volume_keeper import CheckpointTimes

__all__ = [
    "DURABLE",
    "VOLATILE",
    "CheckpointTimes",
    "DeviceMedium",
    "FileRegion",
    "MetaRegion",
    "Ownership",
    "SlotAdapter",
    "SlotGeometry",
    "SlotIndex",
    "SlotMedium",
    "Volume",
    "VolumeIdentity",
    "meta_bytes_for",
    "open_volume",
]

__version__ = "0.1.0"
