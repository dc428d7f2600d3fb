"""Devices that are striped know each other: each but the first says which volume it is part of, and in which place.

The first has the superblock and the checkpoints of them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

from lmcache_core import ObjectHeader, ResourceError
from lmcache_l2_dax import stripe_generations
from lmcache_l2_dax.stripe_generations import Generations
from lmcache_object_slots import MetaRegion, Volume, VolumeIdentity, open_volume
from lmcache_object_slots.sealed_page import PAGE_BYTES, pack_page, unpack_page
from lmcache_object_slots.slot_keeper import BLANK, examine, makes_room

MAGIC: Final = b"LMKVSTR1"


@dataclass(frozen=True, slots=True)
class Member:
    """A device's place among `devices`; the first has place 0."""

    volume: str
    place: int
    devices: int


@dataclass(frozen=True, slots=True)
class StripedDevice:
    """What is asked of a device before it is used.  `is_blank` reads much of it."""

    name: str
    region: MetaRegion
    is_blank: Callable[[], bool]

    def member(self) -> Member | None:
        """What it says of itself; None where it is none of ours.  Raises OSError."""
        fields = unpack_page(MAGIC, self.region.read(0, PAGE_BYTES))
        return None if fields is None else Member(**fields)

    def forget(self, starts: Sequence[int]) -> None:
        """Clear what is an object, or was one, in the slots that begin there.  Raises OSError."""
        for at in starts:
            page = self.region.read(at, PAGE_BYTES)
            found = None if page == BLANK else examine(page)
            if isinstance(found, ObjectHeader) or (found is not None and makes_room(found)):
                self.region.write(at, BLANK)
        self.region.sync()


class StripedVolume(NamedTuple):
    """`new` devices were empty, and `stale` ones have missed something that the others have seen: so these are empty, too."""

    volume: Volume
    new: list[str]
    stale: list[str]


def open_striped_volume(devices: Sequence[StripedDevice], wanted: VolumeIdentity, *, overwrite: bool) -> StripedVolume:
    """The volume on all of them, when nothing is left on any of them that the others do not speak of.

    A device that holds something else, or belongs to another volume or place, is a ResourceError and nothing was written;
    with `overwrite` everything on all of them is discarded.  Raises OSError.  Blocking."""
    first, *others = devices
    members = [device.member() for device in others]
    for device, member in zip(others, members, strict=True):
        if member is None and not overwrite and not device.is_blank():
            raise _refused(device, "is not empty, and holds no further part of striped slots")
    volume = open_volume(first.region, wanted, overwrite=overwrite, is_blank=lambda: _are_blank(first, members))
    places = [Member(volume.id, place, len(devices)) for place in range(1, len(devices))]
    foreign = [
        device for device, member, place in zip(others, members, places, strict=True) if member not in (None, place)
    ]
    if foreign and not overwrite:
        raise _refused(foreign[0], f"belongs to other devices than '{first.name}', or in another place among them")
    if foreign:
        volume.forget(wipe=True)
    new = [device for device, member, place in zip(others, members, places, strict=True) if member != place]
    generation, stale = _generation(volume, devices, new)
    if new or stale:
        volume.begin_changes()  # a checkpoint that speaks of what they held is not exact any more
    for device in stale:
        device.forget([volume.geometry.run_at(row) for row in range(volume.geometry.count // len(devices))])
    for device, place in zip(others, places, strict=True):
        if device in new:
            device.region.write(0, pack_page(MAGIC, asdict(place)))
            device.region.sync()
    if others:
        stripe_generations.enter_next(generation, volume, [device.region for device in others])
    return StripedVolume(volume, [device.name for device in new], [device.name for device in stale])


def _generation(
    volume: Volume, devices: Sequence[StripedDevice], new: Sequence[StripedDevice]
) -> tuple[int, list[StripedDevice]]:
    """The newest one, and which devices have not come to it."""
    first, *others = devices
    old = [device for device in others if device not in new]
    reached = {device: Generations.read(device.region, volume.id) for device in old}
    newest = stripe_generations.newest(volume.generation, list(reached.values()))
    stale = [first] if volume.generation < newest else []
    return newest, stale + [device for device in old if reached[device].reached < newest]


def _are_blank(first: StripedDevice, members: Sequence[Member | None]) -> bool:
    """May a new volume be begun?  Not where others hold their part of one whose first device is missing."""
    return not any(members) and first.is_blank()


def _refused(device: StripedDevice, why: str) -> ResourceError:
    return ResourceError(
        f"{device.name} {why}; it was left as it is. Name another, put them in their old order, or say "
        "overwrite_device: true to discard what is on all of them"
    )
