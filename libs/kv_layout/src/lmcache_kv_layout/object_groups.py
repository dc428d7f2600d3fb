"""Which groups share a chunk object, and where in it each one lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmcache_client import ChunkLayout, ObjectLayout, joined_layout
from lmcache_kv_layout.errors import LayoutError
from lmcache_kv_layout.limits import GROUPS_MAX
from lmcache_kv_layout.paged_group import PagedGroup


@dataclass(frozen=True, slots=True)
class ObjectRegion:
    """A kernel group's bytes in a chunk object.

    `group` is its place among all kernel groups.  Of each chunk's blocks the object has `blocks`, from the `first_block`-th on.
    """

    group: int
    offset: int
    nbytes: int
    first_block: int
    blocks: int


@dataclass(frozen=True, slots=True)
class ObjectGroupPlan:
    """One object group: its regions in kernel-group order, and its layout.

    `window_chunks`: the number of chunks at the end of a prefix that are needed; `None`: all of them.
    """

    regions: tuple[ObjectRegion, ...]
    window_chunks: int | None
    layout: ChunkLayout

    @property
    def groups(self) -> tuple[int, ...]:
        return tuple(region.group for region in self.regions)


def object_layout(groups: Sequence[PagedGroup], chunk_tokens: int) -> ChunkLayout:
    """A chunk of all these groups in one object."""
    return plan_object_groups(groups, chunk_tokens, separate=False)[0].layout


def plan_object_groups(
    groups: Sequence[PagedGroup], chunk_tokens: int, separate: bool, trim_windows: bool = False
) -> tuple[ObjectGroupPlan, ...]:
    """Split kernel groups into object groups.

    Together they are one group of which every chunk is needed. Apart (`separate`), groups of equal tag, recurrence and window
    share an object; first those without a tag, by their first kernel group, then the others. `trim_windows`: where a window is
    shorter than a chunk, its object has only the blocks of the last window.  Raises `LayoutError` where the chunk does not fit.
    """
    if not 1 <= len(groups) <= GROUPS_MAX:
        raise LayoutError(f"{len(groups)} kernel groups; a chunk object has 1 to {GROUPS_MAX}")
    buckets: dict[tuple[int, bool, int | None], list[int]] = {}
    for place, group in enumerate(groups):
        kind = (group.object_group_tag, group.recurrent, _window_chunks(group, chunk_tokens))
        buckets.setdefault(kind if separate else (0, False, None), []).append(place)
    ordered = sorted(buckets.items(), key=lambda item: (item[0][0] != 0, item[1][0]))
    return tuple(_plan(groups, members, kind[2], chunk_tokens, trim_windows) for kind, members in ordered)


def _plan(
    groups: Sequence[PagedGroup], members: list[int], window_chunks: int | None, chunk_tokens: int, trim_windows: bool
) -> ObjectGroupPlan:
    regions: list[ObjectRegion] = []
    parts: list[ObjectLayout] = []
    offset = 0
    for place in members:
        group = groups[place]
        try:
            blocks = group.blocks_per_chunk(chunk_tokens)
            kept = _window_blocks(group, chunk_tokens) if trim_windows else blocks
            part = group.region_layout(kept)
        except LayoutError as error:
            raise LayoutError(f"kernel group {place}: {error}") from None
        regions.append(ObjectRegion(place, offset, part.payload_bytes, blocks - kept, kept))
        parts.append(part)
        offset += part.payload_bytes
    return ObjectGroupPlan(tuple(regions), window_chunks, joined_layout(parts))


def _window_chunks(group: PagedGroup, chunk_tokens: int) -> int | None:
    return None if group.window_tokens < 0 else -(-group.window_tokens // chunk_tokens)


def _window_blocks(group: PagedGroup, chunk_tokens: int) -> int:
    if not 0 < group.window_tokens < chunk_tokens:
        return group.blocks_per_chunk(chunk_tokens)
    if group.window_tokens % group.tokens_per_block:
        raise LayoutError(
            f"a window of {group.window_tokens} tokens is not a whole number of blocks of "
            f"{group.tokens_per_block} tokens"
        )
    return group.window_tokens // group.tokens_per_block
