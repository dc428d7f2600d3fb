"""What a selector is given, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Need(StrEnum):
    """Facts that cost a pass of the model or hooks in it; they are there only for selectors that need them."""

    DEVIATION = "deviation"
    ATTENTION = "attention"


class Segment(NamedTuple):
    """Reused tokens of one chain: at `[start, end)` of the prompt now, from `old_start` on when they were computed.

    Chunks that adjoin in both are one segment, without a seam.
    """

    start: int
    end: int
    old_start: int


class Run(NamedTuple):
    """Neighbouring tokens `[start, end)` of the prompt; one row of the attention batch."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """One request's reused tokens.  Ranks of an engine have equal facts, and must choose alike.

    `segments` ascend and are disjoint; `budget` tokens of them may be chosen; the engine's blocks have `block_tokens`.
    Arrays have a column for each token of each segment, in the order of the prompt, and cannot be written. `deviation` is
    `[check layer][token]`: the squared distance of the reused K from the one computed afresh; NaN where that layer did not
    compute the token.  `attention` is `[token]`: how much the last tokens of the prompt, the question, attend to it.
    """

    segments: tuple[Segment, ...]
    budget: int
    block_tokens: int
    deviation: NDArray[np.float32] | None = None
    attention: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for facts that contradict each other."""
        object.__setattr__(self, "segments", tuple(Segment(*segment) for segment in self.segments))
        end = 0
        for segment in self.segments:
            if not (end <= segment.start < segment.end and segment.old_start >= 0):
                raise ValueError(f"{segment} begins before token {end}, is empty, or comes from before a prompt")
            end = segment.end
        if self.block_tokens < 1 or self.budget < 0:
            raise ValueError(f"blocks of {self.block_tokens} tokens and a budget of {self.budget}")
        if self.deviation is not None:
            object.__setattr__(self, "deviation", self._array("deviation", self.deviation, 2))
        if self.attention is not None:
            object.__setattr__(self, "attention", self._array("attention", self.attention, 1))

    @property
    def tokens(self) -> int:
        return sum(segment.end - segment.start for segment in self.segments)

    def positions(self) -> NDArray[np.int64]:
        """The position of each token in the prompt."""
        return np.concatenate([np.arange(segment.start, segment.end) for segment in self.segments] or [np.arange(0)])

    def _array(self, name: str, values: NDArray[np.float32], dimensions: int) -> NDArray[np.float32]:
        found = np.array(values, np.float32)
        if found.ndim != dimensions or found.shape[-1] != self.tokens or not found.size >= self.tokens:
            raise ValueError(f"{name} of the shape {found.shape} for {self.tokens} tokens")
        found.flags.writeable = False
        return found


@dataclass(frozen=True, slots=True)
class Selector:
    """The value that an entry point in the group `lmcache.blend_selectors.v1` names.

    `choose` is a pure function: equal facts give equal runs in every process, also after other calls. Its runs ascend, are
    disjoint, lie within segments, and have `budget` tokens at most. `needs`: what must be there of the facts that cost
    something. `ratio`: the share of tokens that may be chosen, in place of the one that is set.
    """

    choose: Callable[[Facts], Sequence[Run]]
    needs: frozenset[Need] = frozenset()
    ratio: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", frozenset(Need(need) for need in self.needs))
        if self.ratio is not None and not 0 <= self.ratio <= 1:
            raise ValueError(f"the ratio of a selector is {self.ratio}; it is a share of all tokens")


def runs_of(positions: Iterable[int]) -> tuple[Run, ...]:
    """Ascending positions as runs, none of which adjoins the next."""
    found = np.fromiter(positions, np.int64)
    begins = np.flatnonzero(np.diff(found, prepend=found[:1] - 2) != 1)
    ends = np.append(begins[1:], len(found)) if len(found) else begins
    return tuple(map(Run, found[begins].tolist(), (found[ends - 1] + 1).tolist()))
