"""Checks what several clients were answered about one value, while others wrote it, for being possible at all.

Possible is a history whose operations can be put in an order in which each of them lies between its beginning and its end, and
each read has the value of the last write before it.  Then no acknowledged write is lost, and no read goes back.

Where each value is written once, this can be decided by looking at pairs (Gibbons and Korach, Testing Shared Memories, 1997).
The operations of one value are a zone, from the first end to the last beginning among them: forward where these are in this
order, because the value must be there for the whole of it, and backward otherwise.  Two forward zones may not overlap, a
backward zone may not lie within a forward one, and no read may end before its write began.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple


class Operation(NamedTuple):
    """`ended`: infinity for a write that was not acknowledged, and may have been made at any time or never."""

    writes: bool
    value: Hashable
    began: float
    ended: float


class _Zone(NamedTuple):
    start: float
    end: float
    is_forward: bool
    value: Hashable


def faults(operations: Iterable[Operation], initial: Hashable = None) -> Sequence[str]:
    """What is impossible in the history; empty where all of it is possible.  Raises ValueError for a value that is written
    twice, or is the initial one."""
    by_value: dict[Hashable, list[Operation]] = {initial: [Operation(True, initial, -math.inf, -math.inf)]}
    for each in sorted(operations, key=lambda each: not each.writes):
        if each.writes and each.value in by_value:
            raise ValueError(f"{each.value!r} is written twice")
        by_value.setdefault(each.value, []).append(each)
    found, zones = [], []
    for value, group in by_value.items():
        write, *reads = group
        if not write.writes:
            found.append(f"{value!r} was read and never written")
            continue
        found += [f"{value!r} was read before it was written" for read in reads if read.ended < write.began]
        if not reads and write.ended == math.inf:
            continue  # it was not acknowledged, and not seen
        first_end, last_begin = min(each.ended for each in group), max(each.began for each in group)
        is_forward = first_end < last_begin
        zones.append(_Zone(min(first_end, last_begin), max(first_end, last_begin), is_forward, value))
    forward = sorted(zone for zone in zones if zone.is_forward)
    # compared with the one that reaches farthest so far
    farthest = forward[0] if forward else None
    for _, zone in pairwise(forward):
        assert farthest is not None
        if zone.start < farthest.end:
            found.append(
                f"{zone.value!r} was there before {farthest.value!r} had gone, or {farthest.value!r} came back"
            )
        farthest = max(farthest, zone, key=lambda each: each.end)
    for back in (zone for zone in zones if not zone.is_forward):
        found += [
            f"{back.value!r} was written while {zone.value!r} was there before and after"
            for zone in forward
            if zone.start < back.start and back.end < zone.end
        ]
    return found
