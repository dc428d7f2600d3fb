"""Loads only what is there sooner than the engine could compute it.

How fast each backend is, is measured from its loads.  How fast the engine computes must be said: between the answer to a
lookup and the store of what it missed lie the engine's queue, other requests of its batch, and the copy itself, so a
server cannot tell the time of computing from what it sees.

A prefix is worth loading as far as the time that computing it takes, less the time that loading it takes, grows.  What
lies behind that end is declined and counted.  A backend that is declined would never be measured again; so from time to
time a short piece is loaded all the same, paid from a budget: a share of the time that declining makes engines compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import Field

from lmcache_core import (
    AdapterFacts,
    Bitmap,
    LoadFacts,
    PluginSettings,
    PrefetchFacts,
    PrefetchPlan,
    PrefetchPolicy,
)
from lmcache_policies.prefetch.prefix_ends import Pick, PrefixEnds
from lmcache_policies.prefetch.tier_speed import TierSpeed


class CostAwareSettings(PluginSettings):
    """How fast the engine computes, and how sure loading has to be faster."""

    prefill_tokens_per_second: Annotated[
        float, Field(gt=0, description="Prompt tokens that the engine computes in a second, at the start of a prompt.")
    ]
    safety_factor: Annotated[
        float, Field(ge=1, le=100, description="Loading pays if computing takes this many times as long.")
    ] = 1.2
    minimum_samples: Annotated[
        int, Field(ge=1, le=32, description="Loads after which the speed of a backend counts as known.")
    ] = 3
    probe_chunks: Annotated[
        int,
        Field(ge=1, description="Chunks that are loaded from a backend to measure it, and four times as many in turn."),
    ] = 8
    exploration_share: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="Of the computing that declining costs: time that measuring anew may cost. 0: never.",
        ),
    ] = 0.02


def recompute_cost(first_token: int, tokens: int, attention_tokens: int = 16_384) -> float:
    """Work of computing `tokens` tokens whose prefix of `first_token` tokens is there, in units of one token at the
    start of a prompt: every token costs the same in the linear layers, and attention adds work in proportion to the
    tokens before it.  `attention_tokens` is the context length at which both are equal; it depends on the model (width
    and depth), and ranks of objects hardly depend on it."""
    return tokens * (1.0 + (first_token + tokens / 2) / attention_tokens)


class CostAware(PrefetchPolicy):
    """Each object comes from the healthy adapter that loads it fastest, or is left."""

    weighs_loads = True

    def __init__(self, settings: CostAwareSettings) -> None:
        self._settings: Final = settings
        self._speeds: Final[dict[str, TierSpeed]] = {}
        self._budget_seconds = 0.0
        self._expected: Final[dict[str, float]] = {}
        """By adapter that is being measured anew: how long that should take."""
        self._loads = 0
        """Answered so far: probes are short and long in turn, since one size does not tell latency from rate."""

    def plan(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts]) -> PrefetchPlan:
        sources: list[int | None] = [None] * (found[0].size if found else 0)
        for index in reversed(range(len(found))):
            if adapters[index].healthy:
                for number in found[index]:
                    sources[number] = index
        return PrefetchPlan(tuple(sources))

    def weigh(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts], facts: PrefetchFacts) -> PrefetchPlan:
        # the engine does not compute instead, or only the engine knows what each chunk is worth
        if facts.ordered or facts.sparse:
            return self.plan(found, adapters)
        picks = self._picks(found, adapters, facts)
        if not picks:
            return PrefetchPlan((None,) * len(facts.wanted))
        ends = PrefixEnds(facts, picks, len(adapters))
        end = self._end(ends, adapters, facts)
        sources: list[int | None] = [None] * len(facts.wanted)
        declined: list[int | None] = [None] * len(facts.wanted)
        for pick in picks:
            if pick.chunk < end:
                sources[pick.number] = pick.adapter
            elif pick.chunk < ends.end:
                declined[pick.number] = pick.adapter
        return PrefetchPlan(tuple(sources), declined=tuple(declined))

    def on_load(self, facts: LoadFacts) -> None:
        speed = self._speed(facts.adapter)
        size = facts.ahead_bytes + facts.asked_bytes
        self._loads += 1
        if (expected := self._expected.pop(facts.adapter, None)) is not None:
            self._budget_seconds -= max(0.0, facts.seconds - expected)
        if facts.loaded_bytes:
            speed.took(size, facts.seconds)
        else:
            speed.failed(size, facts.seconds)

    # --- inside

    def _speed(self, adapter: str) -> TierSpeed:
        return self._speeds.setdefault(adapter, TierSpeed(self._settings.minimum_samples))

    def _picks(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts], facts: PrefetchFacts) -> list[Pick]:
        """One for each chunk of a shard that can be loaded: the fastest, and of unknown ones the first of the cascade."""
        order = [index for index, adapter in enumerate(adapters) if adapter.healthy]
        costs = {index: self._speed(adapters[index].name).cost for index in order}
        known = {index: cost.seconds_per_byte for index, cost in costs.items() if cost is not None}
        order.sort(key=lambda index: known.get(index, 0.0))
        best: dict[tuple[int, int], Pick] = {}
        for index in order:
            for number in found[index]:
                each = facts.wanted[number]
                if (each.chunk, each.shard) not in best:
                    best[each.chunk, each.shard] = Pick(number, each.chunk, each.shard, each.object_bytes, index)
        return list(best.values())

    def _end(self, ends: PrefixEnds, adapters: Sequence[AdapterFacts], facts: PrefetchFacts) -> int:
        """Behind the last chunk that is loaded."""
        best, best_gain = ends.first, 0.0
        for end in range(ends.first + 1, ends.end + 1):
            seconds = self._load_seconds(ends, end, adapters, facts)
            if seconds is None:
                break  # no more from a backend whose speed is unknown
            gain = self._compute_seconds(ends.first, end, facts) - self._settings.safety_factor * seconds
            if gain >= best_gain:
                best, best_gain = end, gain
        return self._explore(ends, best, adapters, facts) if best < ends.end else best

    def _load_seconds(
        self, ends: PrefixEnds, end: int, adapters: Sequence[AdapterFacts], facts: PrefetchFacts
    ) -> float | None:
        """None: from a backend that is not known, more than a probe would be loaded, or a second one."""
        longest = 0.0
        for index, adapter in enumerate(adapters):
            objects, size = ends.loads(index, end)
            if not objects:
                continue
            cost = self._speed(adapter.name).cost
            if cost is None:
                if facts.loading_bytes[index] or objects > self._probe_chunks() * len(facts.windows):
                    return None
                continue
            rounds = -(-objects // facts.objects_at_once)
            longest = max(longest, cost.of(facts.loading_bytes[index] + size, rounds))
        return longest

    def _compute_seconds(self, first: int, end: int, facts: PrefetchFacts) -> float:
        tokens = facts.chunk_tokens
        return recompute_cost(first * tokens, (end - first) * tokens) / self._settings.prefill_tokens_per_second

    def _probe_chunks(self) -> int:
        return self._settings.probe_chunks * (4 if self._loads % 2 else 1)

    def _explore(self, ends: PrefixEnds, best: int, adapters: Sequence[AdapterFacts], facts: PrefetchFacts) -> int:
        """`best`, or a little further, where the budget pays for it and no other request is measuring there."""
        self._budget_seconds += self._settings.exploration_share * self._compute_seconds(best, ends.end, facts)
        end = min(best + self._probe_chunks(), ends.end)
        measured = [
            index
            for index in range(len(adapters))
            if ends.loads(index, end)[0] > ends.loads(index, best)[0] and self._speed(adapters[index].name).cost
        ]
        idle = [not facts.loading_bytes[index] and adapters[index].name not in self._expected for index in measured]
        seconds, before = (self._load_seconds(ends, at, adapters, facts) for at in (end, best))
        if not measured or not all(idle) or seconds is None or before is None:
            return best
        loss = (seconds - before) - self._compute_seconds(best, end, facts)
        if max(0.0, loss) > self._budget_seconds:
            return best
        self._budget_seconds -= max(0.0, loss)
        for index in measured:
            self._expected[adapters[index].name] = seconds
        return end


def open_cost_aware(settings: CostAwareSettings) -> PrefetchPolicy:
    return CostAware(settings)
