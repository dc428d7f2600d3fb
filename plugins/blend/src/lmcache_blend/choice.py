"""Which matches of a prompt are asked for, and what the answer says of those that are there."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise

from lmcache_blend_index import Match, link
from lmcache_client import BlendAnswer, BlendSegment


def joined(local: Sequence[Match], others: Sequence[Match], own: Sequence[bytes], chunk_tokens: int) -> list[Match]:
    """The matches that the server knows, ascending, and those that other servers have: where none that is here has their
    place.  The prompt's own chunks are left out of the latter, because they are asked for in any case."""
    starts = [each.start for each in local if not each.is_missed]
    named = {(each.start, each.hash) for each in others}
    found = [each._replace(is_missed=False) if (each.start, each.hash) in named else each for each in local]
    known = {(each.start, each.hash) for each in local}
    for each in others:
        at = bisect_left(starts, each.start - chunk_tokens + 1)
        is_taken = at < len(starts) and starts[at] < each.start + chunk_tokens
        if not is_taken and (each.start, each.hash) not in known and not is_own(each, own, chunk_tokens):
            found.append(each)
    return sorted(found)


def leaves_room(matches: Sequence[Match], end: int, chunk_tokens: int) -> bool:
    """Is there a window of a prompt of `end` tokens that no match here, which is there, overlaps?"""
    at = 0
    for each in matches:
        if not each.is_missed:
            if each.start - at >= chunk_tokens:
                return True
            at = each.start + chunk_tokens
    return end - at >= chunk_tokens


def choose(matches: Sequence[Match], own: Sequence[bytes], chunk_tokens: int) -> list[Match]:
    """Disjoint matches, ascending.  The prompt's own chunks, whose hashes are `own`, are asked for in any case: they are not
    among these, and what they overlap is left out where they are indexed.

    Of matches that overlap, those win that adjoin another one in their chain, then the leftmost.  A match that was not there
    the last time comes after all others."""
    home = [is_own(each, own, chunk_tokens) for each in matches]
    taken = _Places(chunk_tokens)
    for match, at_home in zip(matches, home, strict=True):
        if at_home and not match.is_missed:
            taken.take(match.start)
    others = [match for match, at_home in zip(matches, home, strict=True) if not at_home]
    ends = {(each.start + chunk_tokens, link(each.hash)) for each in others}
    goes_on = {(each.start, each.parent) for each in others}
    chosen: dict[tuple[int, int], Match] = {}
    """By end and hash."""

    def rank(match: Match) -> tuple[bool, bool, int, bool]:
        has_next = (match.start + chunk_tokens, link(match.hash)) in goes_on
        is_chained = has_next or (match.start, match.parent) in ends
        return match.is_missed, not is_chained, match.start, not has_next

    ranked = sorted(others, key=rank)
    for at, match in enumerate(ranked):
        if not taken.is_free(match.start):
            continue
        beside = ranked[at + 1] if at + 1 < len(ranked) else match
        if (
            beside.start == match.start
            and beside.is_missed is match.is_missed
            and (beside.start, beside.parent) in chosen
        ):
            match = beside  # equal tokens, and it goes on what was taken
        taken.take(match.start)
        chosen[match.start + chunk_tokens, link(match.hash)] = match
    return sorted(chosen.values())


def answer_of(
    own: Sequence[bytes],
    chosen: Sequence[Match],
    chunk_tokens: int,
    end: int,
    has_own: Callable[[int], bool],
    has_chosen: Callable[[int], bool],
) -> tuple[BlendAnswer, list[int]]:
    """What is there of a prompt: `has_own` and `has_chosen` say it by index.  The chunks from the first one on are the prefix;
    of the others, the prompt's own win, as far as they end at `end` at the latest.  Beside the answer, the indexes of the
    chosen ones that are there and not in it."""
    prefix = next((at for at in range(len(own)) if not has_own(at)), len(own))
    taken = _Places(chunk_tokens)
    segments: list[BlendSegment] = []
    for at in range(prefix + 1, len(own)):
        start = at * chunk_tokens
        if has_own(at) and start + chunk_tokens <= end:
            taken.take(start)
            segments.append(BlendSegment(start, start + chunk_tokens, start, start + chunk_tokens, own[at], exact=True))
    parents = {(at * chunk_tokens, own[at]): link(own[at - 1]) for at in range(prefix + 1, len(own))}
    unused = []
    for at, match in enumerate(chosen):
        if not has_chosen(at):
            continue
        if match.start < prefix * chunk_tokens or not taken.is_free(match.start):
            unused.append(at)
            continue
        old = match.place * chunk_tokens
        parents[match.start, match.hash] = match.parent
        segments.append(BlendSegment(old, old + chunk_tokens, match.start, match.start + chunk_tokens, match.hash))
    segments.sort(key=lambda each: each.start)
    return BlendAnswer(prefix * chunk_tokens, tuple(_seamed(segments, parents))), unused


def _seamed(segments: Sequence[BlendSegment], parents: dict[tuple[int, bytes], int]) -> list[BlendSegment]:
    """The same, with `follows` where it is so."""
    seamed = list(segments[:1])
    for before, each in pairwise(segments):
        follows = before.end == each.start and parents[each.start, each.hash] == link(before.hash)
        seamed.append(
            BlendSegment(each.old_start, each.old_end, each.start, each.end, each.hash, each.exact, follows)
            if follows
            else each
        )
    return seamed


def is_own(match: Match, own: Sequence[bytes], chunk_tokens: int) -> bool:
    """Is it the prompt's own chunk at its own place?"""
    at, rest = divmod(match.start, chunk_tokens)
    return not rest and at < len(own) and own[at] == match.hash


class _Places:
    """Windows of equal length, none of which overlap."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._starts: dict[int, int] = {}
        """The one that begins in each stretch of that length."""

    def take(self, start: int) -> None:
        self._starts[start // self._length] = start

    def is_free(self, start: int) -> bool:
        at, length, starts = start // self._length, self._length, self._starts
        before, after = starts.get(at - 1, start - length), starts.get(at + 1, start + length)
        return at not in starts and before + length <= start and start + length <= after
