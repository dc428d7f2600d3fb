"""One copy between pages and objects, checked."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from lmcache_kv_layout.chunk_blocks import NO_BLOCK, int64_array
from lmcache_kv_layout.errors import LayoutError
from lmcache_kv_layout.paged_group import PagedGroup

ADDRESS_END = 2**63
"""Behind the last address that a process can have."""


class Direction(IntEnum):
    """Which way bytes go; the numbers are those of the compiled implementation."""

    GATHER = 0
    SCATTER = 1


@dataclass(frozen=True, slots=True)
class PageJob:
    """Addresses and counts that fit each other: the copier need not check again."""

    direction: Direction
    group: PagedGroup
    bases: array[int]
    blocks: array[int]
    objects: array[int]
    blocks_per_object: int
    skip_slots: int
    layers: range

    @classmethod
    def checked(
        cls,
        direction: Direction,
        group: PagedGroup,
        bases: Sequence[int],
        blocks: Sequence[int],
        objects: Sequence[int],
        skip_slots: int,
        layers: range | None,
    ) -> PageJob:
        """Raise `LayoutError` for whatever does not fit."""
        base_array = base_addresses(group, bases)
        if len(blocks) % max(1, len(objects)) or (blocks and not objects):
            raise LayoutError(f"{len(blocks)} blocks are not a whole number for each of {len(objects)} objects")
        per_object = len(blocks) // max(1, len(objects))
        if not 0 <= skip_slots <= per_object * group.slots_per_block:
            raise LayoutError(f"skip_slots is {skip_slots}; an object has {per_object * group.slots_per_block} slots")
        chosen = layer_range(layers, group)
        ids = block_id_array(blocks, group.blocks)
        object_array = address_array("object", objects)
        return cls(direction, group, base_array, ids, object_array, per_object, skip_slots, chosen)

    @property
    def nbytes(self) -> int:
        """Bytes of the objects that take part, absent blocks included."""
        return (
            len(self.blocks)
            * self.group.slots_per_block
            * self.group.token_bytes
            * self.group.kv_axis
            * len(self.layers)
        )

    @property
    def has_gaps(self) -> bool:
        return NO_BLOCK in self.blocks


def base_addresses(group: PagedGroup, bases: Sequence[int]) -> array[int]:
    """A copy.  Raises `LayoutError` unless there is one for K and V of each layer."""
    if len(bases) != group.kv_axis * group.layers:
        raise LayoutError(
            f"{len(bases)} bases; {group.kv_axis} x {group.layers} layers need {group.kv_axis * group.layers}"
        )
    return address_array("base", bases)


def layer_range(layers: range | None, group: PagedGroup) -> range:
    """All layers where there is none.  Raises `LayoutError` for layers that the group has not, or not one behind the other."""
    chosen = range(group.layers) if layers is None else layers
    if chosen.step != 1 or not 0 <= chosen.start <= chosen.stop <= group.layers:
        raise LayoutError(f"{chosen} is not a range of the {group.layers} layers")
    return chosen


def block_id_array(blocks: Sequence[int], count: int) -> array[int]:
    """A copy.  Raises `LayoutError` unless each is `NO_BLOCK` or one of `count` blocks."""
    ids = int64_array(blocks)
    if ids and not (min(ids) >= NO_BLOCK and max(ids) < count):
        raise LayoutError(f"block ids from {min(ids)} to {max(ids)}; the group has the blocks 0 to {count - 1}")
    return ids


def address_array(what: str, addresses: Sequence[int]) -> array[int]:
    """A copy.  Raises `LayoutError`, which says of `what`, for what a process cannot have as an address."""
    try:
        found = array("Q", addresses)
    except (TypeError, OverflowError):
        raise LayoutError(f"the address of a {what} is not a 64-bit integer") from None
    if found and not (min(found) > 0 and max(found) < ADDRESS_END):
        raise LayoutError(f"the address of a {what} is null or beyond what a process has")
    return found
