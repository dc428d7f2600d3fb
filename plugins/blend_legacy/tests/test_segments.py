"""Documents of a prompt and their chunks, beside a plain reading of the same rules."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_blend_legacy.segments import (
    SEGMENTS_MAX,
    SegmentChunk,
    chunks_of_matches,
    chunks_of_ranges,
    joined,
    segment_chunks,
)
from lmcache_client import BlendMatch, EngineKey, encode_tokens
from lmcache_client.engine_key import PADDING, TokenSequence
from lmcache_client.hash_chain import Blake3Chain
from lmcache_core import ChunkHasher, ProtocolError
from lmcache_core.kernels.choice import choose_kernels
from lmcache_core.server.chunk_hashing import PromptHasher
from lmcache_core.server.prompt_memory import PromptMemory
from lmcache_devkit import FakeClock

SIZE, SEPARATOR = 4, (7, 8)


def hasher() -> ChunkHasher:
    kernels = choose_kernels("off")
    return PromptHasher(Blake3Chain(SIZE, kernels.read_prompt, kernels.native), PromptMemory(60.0, FakeClock()))


def key(tokens: Sequence[int], start: int = 0, end: int | None = None) -> EngineKey:
    ids = TokenSequence.of(encode_tokens(tokens))
    return EngineKey("model", 1, 0, ids, start, len(tokens) if end is None else end, "r")


def chunks_in(tokens: Sequence[int], start: int = 0, end: int | None = None) -> list[SegmentChunk]:
    return segment_chunks(key(tokens, start, end), SEPARATOR, hasher(), SIZE)


def places(chunks: Sequence[SegmentChunk]) -> list[tuple[int, int, int]]:
    return [(each.start, each.end, each.place) for each in chunks]


def test_a_document_has_the_same_chunks_wherever_it_is() -> None:
    first, second = [1, 2, 3, 4, 5], [6, 6, 6, 6]
    there, moved = chunks_in([*first, 7, 8, *second]), chunks_in([*second, 7, 8, 7, 8, *first])
    assert places(there) == [(0, 4, 0), (4, 5, 4), (7, 11, 0)]
    assert places(moved) == [(0, 4, 0), (8, 12, 0), (12, 13, 4)]
    assert [each.hash for each in moved] == [there[2].hash, there[0].hash, there[1].hash]
    assert len({each.hash for each in there}) == 3
    assert chunks_in(first)[1].hash == hasher().chunk_hashes(encode_tokens([*first, *[PADDING] * 3]), 8)[1]


def test_a_range_begins_a_document() -> None:
    prompt = [9, 1, 2, 3, 4, 5, 9]
    inside = chunks_in(prompt, 1, 6)
    assert places(inside) == [(1, 5, 0), (5, 6, 4)]
    assert [each.hash for each in inside] == [each.hash for each in chunks_in(prompt[1:6])]
    assert chunks_in(prompt, 3, 3) == []


def test_without_a_separator_there_is_one_document() -> None:
    assert places(segment_chunks(key([1, 7, 8, 2, 3]), (), hasher(), SIZE)) == [(0, 4, 0), (4, 5, 4)]


@pytest.mark.parametrize(("tokens", "start", "end", "reason"), [
    ([1, 2], 0, 3, "not one of 2 tokens"),
    ([1, 2], -1, 2, "not one of"),
    ([1, 2], 2, 1, "not one of"),
    ([1, PADDING], 0, 2, "a model has tokens"),
    ([1, -1], 0, 2, "a model has tokens"),
    ([1, 2**63], 0, 2, "a model has tokens"),
    ([1, 7, 8] * (SEGMENTS_MAX + 1), 0, None, f"{SEGMENTS_MAX + 1} segments"),
])  # fmt: skip
def test_bad_prompts_are_refused(tokens: Sequence[int], start: int, end: int | None, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        chunks_in(tokens, start, end)


@given(st.lists(st.sampled_from([1, 2, 7, 8]), max_size=60), st.randoms(use_true_random=False))
def test_what_a_lookup_shows_names_the_same_chunks_again(tokens: list[int], random: object) -> None:
    chunks = chunks_in(tokens)
    some = [each for each in chunks if random.random() < 0.6]  # type: ignore[attr-defined]
    ranges = joined(some)
    assert chunks_of_ranges(chunks, ranges) == some
    assert sum(end - start for start, end in ranges) == sum(each.end - each.start for each in some)
    assert chunks_of_matches(chunks, [each.match for each in some]) == some


PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5]
"""Chunks at 0, 4 (of two tokens), 8 and 12 (of one)."""


@pytest.mark.parametrize("ranges", [
    [(1, 4)], [(0, 3)], [(0, 5)], [(4, 6), (0, 4)], [(0, 4), (0, 4)], [(0, 12)], [(4, 4)], [(6, 4)], [(6, 8)], [(12, 14)],
    [(-4, 0)], [(0, 2**62)],
])  # fmt: skip
def test_ranges_that_no_lookup_gives_are_refused(ranges: list[tuple[int, int]]) -> None:
    assert chunks_of_ranges(chunks_in(PROMPT), [(0, 6), (8, 12)])
    with pytest.raises(ProtocolError, match="the range"):
        chunks_of_ranges(chunks_in(PROMPT), ranges)


def test_matches_that_no_lookup_gives_are_refused() -> None:
    chunks = chunks_in(PROMPT)
    first, second, third, _ = [each.match for each in chunks]
    for wrong in (
        BlendMatch(4, 8, 0, 4, first.hash),
        BlendMatch(0, 4, 0, 4, second.hash),
        BlendMatch(0, 4, 1, 5, first.hash),
        BlendMatch(0, 4, 4, 0, first.hash),
        BlendMatch(0, 8, 0, 8, first.hash),
    ):
        with pytest.raises(ProtocolError, match="is not a chunk of a segment"):
            chunks_of_matches(chunks, [wrong, third])
    with pytest.raises(ProtocolError, match="twice"):
        chunks_of_matches(chunks, [first, first])
