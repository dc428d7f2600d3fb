"""A device or file that is cut into slots: recognised or formatted, with its superblock and checkpoints."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Final

from lmcache_core import ResourceError
from lmcache_object_slots.checkpoint import Checkpoints
from lmcache_object_slots.geometry import SlotGeometry
from lmcache_object_slots.medium import MetaRegion
from lmcache_object_slots.slot_index import SlotIndex
from lmcache_object_slots.slot_state import SlotState
from lmcache_object_slots.superblock import Superblock, SuperblockPages

OVERWRITE: Final = "set overwrite_device: true to discard the present content"


@dataclass(frozen=True, slots=True)
class VolumeIdentity:
    """What must be the same for a volume to be taken as it is.  `name` is what errors call it; magic and version are the
    operator's."""

    name: str
    magic: str
    version: int
    geometry: SlotGeometry


class Volume:
    """The metadata of one volume, for the owner of its lock.  Blocking; one thread at a time; raises OSError."""

    def __init__(self, pages: SuperblockPages, checkpoints: Checkpoints, block: Superblock) -> None:
        self._pages = pages
        self._checkpoints = checkpoints
        self._block = block
        self._is_changing = False

    @property
    def id(self) -> str:
        """Another for each volume that was ever made."""
        return self._block.volume

    @property
    def geometry(self) -> SlotGeometry:
        return self._block.geometry

    @property
    def swept(self) -> int:
        """Slots from here on are to be cleared before they mean anything."""
        return self._block.swept

    @property
    def wipes(self) -> bool:
        """Is everything cleared there, or only objects?"""
        return self._block.wipe

    @property
    def generation(self) -> int:
        return self._block.generation

    @property
    def is_changing(self) -> bool:
        return self._is_changing

    def index(self, *, verify: bool) -> tuple[SlotIndex, bool]:
        """What the checkpoint says, and whether that is exact, which it never is taken for with `verify`.  Where it is not, its
        objects are doubted, and all other slots unknown."""
        loaded = self._checkpoints.load(self._block.epoch)
        exact = loaded is not None and loaded.exact and self.swept == self.geometry.count and not verify
        index = SlotIndex(self.geometry.count, SlotState.FREE if exact else SlotState.UNKNOWN)
        for bucket in loaded.buckets() if loaded else ():
            index.load(bucket, SlotState.HELD if exact else SlotState.DOUBTED, self.swept)
        if exact:
            index.settle()
        return index, exact

    def begin_changes(self) -> None:
        """To be called before slots change: from now on no checkpoint is exact but one that `write_checkpoint` writes so."""
        if not self._is_changing:
            self._put(epoch=self._block.epoch + 1)
            self._is_changing = True

    def enter(self, generation: int) -> None:
        """From now on it is of this generation."""
        self._put(generation=generation)

    def swept_to(self, slot: int) -> None:
        """The headers of all slots below this one are true, and on the medium."""
        self._pages.sync()
        self._put(swept=slot, wipe=self._block.wipe and slot < self.geometry.count)

    def write_checkpoint(self, index: SlotIndex, *, exact: bool) -> int:
        """See `Checkpoints.write`.  After an exact one, `begin_changes` is due again."""
        objects = self._checkpoints.write(index, self._block.epoch, exact=exact)
        self._is_changing = self._is_changing and not exact
        return objects

    def forget(self, *, wipe: bool = False) -> None:
        """Nothing is in the volume: what is there is cleared slot by slot, `swept` says how far."""
        self._checkpoints.forget()  # first: what a checkpoint names would be looked for below
        self._put(swept=0, wipe=wipe, epoch=self._block.epoch + 1)

    def _put(self, **changes: object) -> None:
        block = replace(self._block, sequence=self._block.sequence + 1, **changes)  # type: ignore[arg-type]
        self._pages.write(block)
        self._block = block


def open_volume(region: MetaRegion, wanted: VolumeIdentity, *, overwrite: bool, is_blank: Callable[[], bool]) -> Volume:
    """The volume that is there, or a new one where nothing is (`is_blank` is asked only where there is none of ours).  What is
    another's, or ours with another identity, is a ResourceError and stays as it is, unless with `overwrite`; the volume
    itself is never discarded by that."""
    checkpoints = Checkpoints(region, wanted.geometry)
    pages = SuperblockPages(region, wanted.geometry.head_bytes)
    found = pages.read()
    fault = _difference(found, wanted) if found else _foreign(pages, wanted, is_blank)
    if found and not fault:
        return Volume(pages, checkpoints, found)
    if fault and not overwrite:
        raise ResourceError(f"{wanted.name} {fault}; it was left as it is. Name another, or {OVERWRITE}")
    block = Superblock(uuid.uuid4().hex, wanted.magic, wanted.version, wanted.geometry, found.sequence if found else 0)
    volume = Volume(pages, checkpoints, block)
    volume.forget(wipe=bool(fault))
    return volume


def _foreign(pages: SuperblockPages, wanted: VolumeIdentity, is_blank: Callable[[], bool]) -> str:
    """What is wrong with a place that has no whole superblock; nothing, where it is empty."""
    if pages.is_ours():
        return "has a superblock of ours that is damaged, or of a later version"
    return "" if is_blank() else "is not empty, and holds no slots of ours"


def _difference(found: Superblock, wanted: VolumeIdentity) -> str:
    there = {"meta_magic": found.magic, "meta_version": found.version, **asdict(found.geometry)}
    asked = {"meta_magic": wanted.magic, "meta_version": wanted.version, **asdict(wanted.geometry)}
    names = {"align_bytes": "block_align", "meta_bytes": "meta_total_bytes", "count": "number of slots"}
    unlike = [
        f"{names.get(name, name)} {there[name]!r} where {asked[name]!r} is asked for"
        for name in asked
        if there[name] != asked[name]
    ]
    return f"was made with {', '.join(unlike)}" if unlike else ""
