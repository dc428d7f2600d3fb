"""A trace in memory: flat arrays, a few bytes per block, however many requests there are."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ROOT: Final = 0xFFFFFFFF
"""Null block number: the block before the first of a prompt."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of time.  Request r asks for `blocks[starts[r]:starts[r + 1]]`, in prompt order.

    Blocks are numbered from 0 in the order in which they were first seen; the same id under two salts is two blocks."""

    path: str
    form: str
    """How the file is written: "requests", "lookups" or "blocks"."""
    blocks: array[int]
    starts: Sequence[int]
    """One more than there are requests."""
    seconds: Sequence[float]
    """When each request came, since the start of the trace."""
    salt_of: Sequence[int]
    """Index in `salts`, one per request."""
    salts: tuple[str, ...]
    distinct: int

    @property
    def requests(self) -> int:
        return len(self.starts) - 1

    def longest_request(self) -> int:
        """In blocks."""
        starts = self.starts
        return max((starts[r + 1] - starts[r] for r in range(self.requests)), default=0)

    def is_chained(self) -> bool:
        """Does every block always follow the same block?  So it is where an id names a block and all that is before it,
        as hashes of a prefix cache do."""
        if isinstance(self.starts, range):
            return True
        before = array("I", [ROOT]) * self.distinct
        seen = bytearray(self.distinct)
        for r in range(self.requests):
            last = ROOT
            for block in self.blocks[self.starts[r] : self.starts[r + 1]]:
                if not seen[block]:
                    seen[block] = 1
                    before[block] = last
                elif before[block] != last:
                    return False
                last = block
        return True


def in_order_of_time(trace: Trace) -> Trace:
    """The same requests, sorted by `seconds`; those of one moment stay in the order of the file."""
    seconds = trace.seconds
    if all(seconds[r] <= seconds[r + 1] for r in range(trace.requests - 1)):
        return trace
    order = sorted(range(trace.requests), key=seconds.__getitem__)
    blocks, starts = array("I"), array("Q", [0])
    for r in order:
        blocks.extend(trace.blocks[trace.starts[r] : trace.starts[r + 1]])
        starts.append(len(blocks))
    times = array("d", (seconds[r] for r in order))
    salts = array("I", (trace.salt_of[r] for r in order))
    return Trace(trace.path, trace.form, blocks, starts, times, salts, trace.salts, trace.distinct)
