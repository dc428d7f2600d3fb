"""Documents of a prompt, cut at a separator: the chunks of each are a chain of their own, wherever it lies in a prompt.

A document at the start of a prompt was computed with nothing before it: its chain is that of the prompt, and exact. All others
have seen what was before them. They are stored under a name that only requests that blend look up, apart from what
`lmcache.blend_keep` stores: a chain there says what was before its chunks, and that of a document does not.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from lmcache_client import encode_tokens
from lmcache_client.blend import BlendSegment
from lmcache_client.engine_key import PADDING
from lmcache_kv_identity import fingerprint, split_segments
from lmcache_vllm.metadata import SegmentChain, SegmentPlace, Transfer
from lmcache_vllm.server_port import Question

if TYPE_CHECKING:  # it imports lookups, which import this
    from lmcache_vllm.request_state import RequestState

SEGMENTS_MAX: Final = 128
"""Of a prompt; two lookups each. What is behind them is not cut."""
VARIANT: Final = fingerprint({"segments": True})
"""Of the approximate name. Requests that blend have no variant of their own: adapters and images are not blended."""


class ChainQuestion(NamedTuple):
    """A lookup of one chain."""

    transfer: Transfer
    """Of the whole chain, without blocks."""
    question: Question


def cut(prompt: Sequence[int], separator: Sequence[int]) -> tuple[range, ...]:
    """The segments of a prompt, in order. What is behind the last separator is the question, and none of them, unless there is
    no separator at all: a document that was sent alone."""
    if not separator:
        return ()
    found = split_segments(prompt, separator)
    if found and found[-1].start > 0 and found[-1].stop == len(prompt):
        found.pop()
    return tuple(found[:SEGMENTS_MAX])


def chain_id(request_id: str, start: int, *, approximate: bool) -> str:
    """Under which a request asks for the chain of the segment at `start`."""
    return f"{request_id}##{'seen' if approximate else 'alone'}{start}"


def chain(
    state: RequestState,
    segment: range,
    chunk_tokens: int,
    *,
    approximate: bool,
    number: int = 0,
    request_id: str = "",
    blocks: Sequence[int] = (),
) -> Transfer:
    """All chunks of a segment; the last one may be short, and ends with padding. Without `request_id` it has that of the
    question."""
    facts = state.facts
    tokens = [*facts.tokens[segment.start : segment.stop], *[PADDING] * (-len(segment) % chunk_tokens)]
    state.known_to_server = True
    return Transfer(
        number,
        request_id or chain_id(facts.request_id, segment.start, approximate=approximate),
        bytes(encode_tokens(tokens)),
        0,
        len(tokens),
        chunk_tokens,
        (tuple(blocks),),
        facts.cache_salt,
        facts.configs,
        VARIANT if approximate else state.variant,
        approximate,
        SegmentPlace(segment.start, len(segment)),
    )


def with_chains(
    segments: Sequence[BlendSegment], prefix_tokens: int, chains: Iterable[tuple[Transfer, int]]
) -> tuple[tuple[BlendSegment, ...], tuple[SegmentChain, ...]]:
    """`segments`, and chunks of the chains; beside them, the chains that they are of. `chains` come with the number of chunks
    that were found. Of two for one place the first wins, but chains come before `segments` that are moved: those are pieces of
    a document, as chunks of other prompts cut it."""
    joined, used = [each for each in segments if each.exact], []
    for transfer, hits in chains:
        starts: set[int] = set()
        chunks = min(hits, transfer.chunks)
        for at in range(chunks):
            found = _chunk(transfer, at)
            if found.start >= prefix_tokens and _is_free(joined, found):
                insort(joined, _seamed(found, transfer.chunk_tokens, starts), key=_start)
                starts.add(found.start)
        if starts:
            used.append(SegmentChain(transfer, chunks, frozenset(starts)))
    end = -1
    for each in segments:
        if each.exact or _is_free(joined, each):
            if not each.exact:
                insort(joined, each if each.start == end else _begins(each), key=_start)
            end = each.end
    return tuple(joined), tuple(used)


def _chunk(transfer: Transfer, at: int) -> BlendSegment:
    place, size = transfer.segment, transfer.chunk_tokens
    assert place is not None, "the transfer of a chain"
    start = place.start + at * size
    end = min(start + size, place.end)
    exact = place.start == 0 and not transfer.approximate
    return BlendSegment(at * size, at * size + end - start, start, end, b"", exact)


def _seamed(found: BlendSegment, chunk_tokens: int, starts: set[int]) -> BlendSegment:
    if found.start - chunk_tokens not in starts:
        return found
    return BlendSegment(found.old_start, found.old_end, found.start, found.end, b"", found.exact, follows=True)


def _begins(segment: BlendSegment) -> BlendSegment:
    """The segment without `follows`: the chunk before it is not taken."""
    return msgspec.structs.replace(segment, follows=False) if segment.follows else segment


def _is_free(joined: Sequence[BlendSegment], found: BlendSegment) -> bool:
    at = bisect_left(joined, found.start, key=_start)
    return (at == 0 or joined[at - 1].end <= found.start) and (at == len(joined) or found.end <= joined[at].start)


def _start(segment: BlendSegment) -> int:
    return segment.start


def is_found(state: RequestState, segment: range) -> bool:
    """Whether the lookup of its request has found all of it, in whatever pieces. What has lost a chunk is stored once more."""
    lookup = state.lookup
    if lookup is None or lookup.server is not state.server:
        return False
    reached = max(segment.start, lookup.hit_tokens or 0)
    for each in lookup.segments:
        if each.start <= reached:
            reached = max(reached, each.end)
    return reached >= segment.stop
