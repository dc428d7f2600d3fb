"""Where in a block the elements of one token are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmcache_kv_layout.errors import LayoutError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lmcache_kv_layout.paged_group import PagedGroup


@dataclass(frozen=True, slots=True)
class Places:
    """Element e of slot s of any head is at `slots[s] + elements[e]` in that head's part of a block, `[slot][element]`."""

    slots: tuple[int, ...]
    elements: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KVPlaces:
    """The places of K and of V: of one plane where K and V are fused, of two otherwise."""

    key: Places
    value: Places

    @classmethod
    def by_strides(cls, group: PagedGroup, head_size: int) -> KVPlaces:
        """Of a group that has in the row of each slot the elements of that slot: K, and behind it V where they are fused."""
        row = group.head_bytes // group.item_bytes
        end, behind = group.slots_per_block * row, head_size if group.kv_axis == 1 else 0
        return cls(
            Places(tuple(range(0, end, row)), tuple(range(head_size))),
            Places(tuple(range(behind, end, row)), tuple(range(row - behind))),
        )

    @classmethod
    def transposed(cls, group: PagedGroup, head_size: int) -> KVPlaces:
        """Of fused pages as vLLM's `vec` kernels for CPUs keep them: of each head all K, by element, then all V, by slot."""
        slots, size = group.slots_per_block, group.head_bytes // group.item_bytes - head_size
        behind = slots * head_size
        return cls(
            Places(tuple(range(slots)), tuple(range(0, behind, slots))),
            Places(tuple(range(behind, behind + slots * size, size)), tuple(range(size))),
        )

    @classmethod
    def measured(cls, group: PagedGroup, numbers: NDArray[Any], head_size: int) -> KVPlaces:
        """Of a block as it was seen: for each place in a chunk's block, the number that the element there has in slot order.

        Raises LayoutError for an order in which slots and elements do not add up, or that differs from head to head.
        """
        import numpy as np  # only where something is measured: servers import this module

        row = group.head_bytes // group.item_bytes
        shape = (group.kv_axis, group.slots_per_block, group.heads, row)
        kv, slot, head, within = np.unravel_index(np.argsort(numbers), shape)
        own = np.indices(shape)
        places = (slot * row + within).reshape(shape)
        if not (
            np.array_equal(kv.reshape(shape), own[0])
            and np.array_equal(head.reshape(shape), own[2])
            and (places == places[:, :, :1]).all()
        ):
            raise LayoutError("the order of elements within blocks differs from head to head")
        key, value = places[0, :, 0], places[-1, :, 0]
        if group.kv_axis == 1:
            key, value = key[:, :head_size], key[:, head_size:]
        return cls(_sums(key), _sums(value))


def _sums(places: NDArray[Any]) -> Places:
    slots, elements = places[:, :1], places[:1] - places[:1, :1]
    if (slots + elements != places).any():
        raise LayoutError("the order of elements within blocks is not made of an order of slots and one of elements")
    return Places(tuple(slots[:, 0].tolist()), tuple(elements[0].tolist()))
