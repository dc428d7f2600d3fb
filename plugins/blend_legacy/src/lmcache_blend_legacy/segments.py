"""Documents of a prompt, and their chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from lmcache_client import BlendMatch, encode_tokens
from lmcache_client.engine_key import PADDING, TokenSequence
from lmcache_core import ChunkHasher, EngineKey, ProtocolError
from lmcache_kv_identity import split_segments

SEGMENTS_MAX: Final = 4096
"""Of one request: each costs the hash of a chunk at least."""


class SegmentChunk(NamedTuple):
    """Tokens `[start, end)` of a prompt, a chunk or what a segment has left at its end."""

    hash: bytes
    start: int
    end: int
    place: int
    """Of its first token, in its segment."""

    @property
    def match(self) -> BlendMatch:
        place = self.place
        return BlendMatch(place, place + self.end - self.start, self.start, self.end, self.hash)


def segment_chunks(
    key: EngineKey, separator: Sequence[int], hasher: ChunkHasher, chunk_tokens: int
) -> list[SegmentChunk]:
    """The chunks of what lies between separators in the range of a key, in order.  Each segment is a chain of hashes of its
    own, the last chunk filled up with PADDING; without a separator, the range is one segment.  Raises ProtocolError."""
    ids, start, end = key.token_ids, key.start, key.end
    assert isinstance(ids, TokenSequence), "a key that was received"
    if ids.count and not ids.encoded:
        raise ProtocolError("the key has chunk_hashes and no token_ids: documents are cut by their tokens")
    if not 0 <= start <= end <= ids.count:
        raise ProtocolError(f"the range {start} to {end} is not one of {ids.count} tokens")
    tokens = ids.decode()[start:end]
    if tokens and not 0 <= min(tokens) <= max(tokens) < PADDING:
        raise ProtocolError(f"tokens from {min(tokens)} to {max(tokens)}; a model has tokens from 0 to {PADDING - 1}")
    segments = split_segments(tokens, separator) if separator else [range(len(tokens))] if tokens else []
    if len(segments) > SEGMENTS_MAX:
        raise ProtocolError(f"{len(segments)} segments between separators; a request has {SEGMENTS_MAX} at most")
    found: list[SegmentChunk] = []
    for segment in segments:
        own = tokens[segment.start : segment.stop]
        own += [PADDING] * (-len(own) % chunk_tokens)
        for at, each in enumerate(hasher.chunk_hashes(encode_tokens(own), len(own))):
            place = at * chunk_tokens
            first = segment.start + place
            last = min(first + chunk_tokens, segment.stop)
            found.append(SegmentChunk(each, start + first, start + last, place))
    return found


def joined(chunks: Sequence[SegmentChunk]) -> list[tuple[int, int]]:
    """The ranges of the prompt that these chunks are, those of one segment that go on where the one before ends as one."""
    ranges: list[tuple[int, int]] = []
    for each in chunks:
        if ranges and each.place and ranges[-1][1] == each.start:
            ranges[-1] = ranges[-1][0], each.end
        else:
            ranges.append((each.start, each.end))
    return ranges


def chunks_of_ranges(chunks: Sequence[SegmentChunk], ranges: Sequence[tuple[int, int]]) -> list[SegmentChunk]:
    """Those that the ranges are, which ascend.  Raises ProtocolError for ranges that no lookup of the prompt gives."""
    at_start = {each.start: each for each in chunks}
    found: list[SegmentChunk] = []
    behind = 0
    for start, end in ranges:
        if not behind <= start < end:
            raise ProtocolError(f"the range {start} to {end} is empty, or not behind the one before it")
        behind = start
        while behind < end:
            chunk = at_start.get(behind)
            if chunk is None or chunk.end > end or (behind > start and not chunk.place):
                raise ProtocolError(f"the range {start} to {end} is not made of chunks of one segment of the prompt")
            found.append(chunk)
            behind = chunk.end
    return found


def chunks_of_matches(chunks: Sequence[SegmentChunk], matches: Sequence[BlendMatch]) -> list[SegmentChunk]:
    """Those that the matches are, in any order.  Raises ProtocolError for matches that no lookup of the prompt gives."""
    at_start = {each.start: each for each in chunks}
    found = [at_start.get(each.cur_st) for each in matches]
    for match, chunk in zip(matches, found, strict=True):
        if chunk is None or chunk.match != match:
            raise ProtocolError(
                f"the match {match.cur_st} to {match.cur_ed} of {match.old_st} to {match.old_ed} is not a chunk of a "
                "segment of the prompt with its hash"
            )
    known = [each for each in found if each is not None]
    if len({each.start for each in known}) < len(known):
        raise ProtocolError("a match is given twice")
    return known
