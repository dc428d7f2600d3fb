"""The result of a simulation, before it is formatted."""

from __future__ import annotations

from dataclasses import dataclass

from lmcache_policies.simulate.capacity import Capacity
from lmcache_policies.simulate.clairvoyant import Foresight
from lmcache_policies.simulate.contenders import Contender
from lmcache_policies.simulate.replay import BlockSize, Replayed
from lmcache_policies.simulate.trace import Trace


@dataclass(frozen=True, slots=True)
class Rules:
    """What all replays have in common."""

    size: BlockSize
    evict_ratio: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Every sequence of results has one entry per capacity."""

    trace: Trace
    rules: Rules
    capacities: tuple[Capacity, ...]
    policies: tuple[tuple[Contender, tuple[Replayed, ...]], ...]
    clairvoyant: tuple[Foresight, ...]

    @property
    def exact(self) -> bool:
        """Is the clairvoyant's hit rate the optimum?  It is where its bound is met."""
        return all(foresight.hits == foresight.at_most for foresight in self.clairvoyant)

    def rate(self, hits: int) -> float:
        """As a share of the blocks of the trace."""
        return hits / max(1, len(self.trace.blocks))

    def best_hits(self, column: int) -> int:
        return max((results[column].hits for _, results in self.policies), default=0)
