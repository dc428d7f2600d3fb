"""Which blocks hold a range of a request's tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from lmcache_kv_layout import NO_BLOCK
from lmcache_vllm.placement import CacheGroup
from lmcache_vllm.request_facts import BlockTable

NULL_BLOCK: Final = 0
"""vLLM's null (padding) block: its id is in a table where a group has no block, or does not need it any more."""

BlockIds = tuple[tuple[int, ...], ...]


def to_load(
    table: BlockTable, groups: Sequence[CacheGroup], start: int, end: int, first: int, chunk_tokens: int
) -> BlockIds:
    """The blocks of the chunks that `[start, end)` is in, with the null block for those before token `first`, behind `end`
    and where none is allocated."""
    chosen = []
    for blocks, group in zip(table, groups, strict=True):
        size = group.block_tokens
        before = (first - start) // size
        ids = blocks[start // size + before : end // size]
        missing = (end + -end % chunk_tokens - start) // size - before - len(ids)
        chosen.append((NULL_BLOCK,) * before + tuple(ids) + (NULL_BLOCK,) * missing)
    return tuple(chosen)


def written(new_blocks: Iterable[tuple[int, BlockTable]], groups: Sequence[CacheGroup]) -> Iterator[int]:
    """Of each table the blocks from the one on that holds the token beside it."""
    for first, table in new_blocks:
        for blocks, group in zip(table, groups, strict=True):
            yield from blocks[first // group.block_tokens :]


def to_store(
    table: BlockTable, groups: Sequence[CacheGroup], start: int, end: int, chunk_tokens: int
) -> Iterator[tuple[int, int, BlockIds]]:
    """The longest ranges of chunks within `[start, end)` of which every group has every block; a last chunk that is not
    whole is filled with `NO_BLOCK`. A group with a window may have released blocks, whose chunks cannot be stored any more."""
    run_start = start
    for chunk in range(start, end, chunk_tokens):
        last = min(chunk + chunk_tokens, end)
        if not all(_has(blocks, group, chunk, last) for blocks, group in zip(table, groups, strict=True)):
            if run_start < chunk:
                yield run_start, chunk, _between(table, groups, run_start, chunk, 0)
            run_start = last
    if run_start < end:
        yield run_start, end, _between(table, groups, run_start, end, -end % chunk_tokens)


def _has(blocks: Sequence[int], group: CacheGroup, start: int, end: int) -> bool:
    last = end // group.block_tokens
    return last <= len(blocks) and NULL_BLOCK not in blocks[start // group.block_tokens : last]


def _between(table: BlockTable, groups: Sequence[CacheGroup], start: int, end: int, missing: int) -> BlockIds:
    """With `NO_BLOCK` for the `missing` tokens behind `end`."""
    return tuple(
        (
            *blocks[start // group.block_tokens : end // group.block_tokens],
            *[NO_BLOCK] * (missing // group.block_tokens),
        )
        for blocks, group in zip(table, groups, strict=True)
    )
