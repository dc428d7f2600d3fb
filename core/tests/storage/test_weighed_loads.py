"""A prefetch policy that weighs loads: what it receives, and what becomes of what it declines."""

from __future__ import annotations

from collections.abc import Sequence

from core.tests.storage.storage_harness import CHUNKS, PAYLOAD, StorageHarness, open_storage, space
from lmcache_core.contracts.events import LoadsDeclined
from lmcache_core.contracts.policies import (
    AdapterFacts,
    LoadFacts,
    PrefetchFacts,
    PrefetchPlan,
    PrefetchPolicy,
    WantedObject,
)
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_core.model.results import Bitmap, Outcome

OBJECT = HEADER_BYTES + PAYLOAD


class FirstTwo(PrefetchPolicy):
    """Loads two chunks, and declines the others."""

    weighs_loads = True

    def __init__(self) -> None:
        self.facts: list[PrefetchFacts] = []
        self.loads: list[LoadFacts] = []

    def plan(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts]) -> PrefetchPlan:
        raise AssertionError("it weighs")

    def weigh(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts], facts: PrefetchFacts) -> PrefetchPlan:
        self.facts.append(facts)
        keys = range(len(facts.wanted))
        return PrefetchPlan(
            tuple(0 if key < 2 else None for key in keys), declined=tuple(None if key < 2 else 0 for key in keys)
        )

    def on_load(self, facts: LoadFacts) -> None:
        self.loads.append(facts)


def test_what_is_declined_is_not_loaded_and_counted() -> None:
    policy = FirstTwo()
    with open_storage(StorageHarness(policy=policy)) as harness:
        harness.put_in_l2(*CHUNKS[:5])
        harness.ask(*CHUNKS)
        harness.turn()
        harness.finish("lookup")
        (facts,) = policy.facts
        assert facts.wanted == [WantedObject(chunk, 0, OBJECT) for chunk in range(8)]
        assert (facts.windows, facts.chunk_tokens, facts.loading_bytes) == ([None], space().space.chunk_tokens, [0])
        assert not facts.sparse
        assert not facts.ordered
        ((_, job),) = harness.jobs("load")
        assert [key.chunk_hash for key in job.keys] == list(CHUNKS[:2])
        assert harness.client.counters.snapshot().declined == (
            1,
            3,
            3 * OBJECT,
        )  # the three that it does not have do not count
        (declined,) = harness.events.of(LoadsDeclined)
        assert (declined.adapter, declined.objects, declined.object_bytes) == ("cue", 3, 3 * OBJECT)


def test_it_receives_how_long_a_load_took_and_what_came() -> None:
    policy = FirstTwo()
    with open_storage(StorageHarness(policy=policy)) as harness:
        harness.put_in_l2(*CHUNKS[:5])
        harness.ask(*CHUNKS)
        harness.turn()
        harness.finish("lookup")
        harness.clock.advance(0.5)
        harness.finish("load")
        assert policy.loads == [LoadFacts("cue", 2 * OBJECT, 0, 2 * OBJECT, 0.5)]


def test_one_that_raises_when_it_is_notified_costs_nothing() -> None:
    class Broken(FirstTwo):
        def on_load(self, facts: LoadFacts) -> None:
            raise RuntimeError("no")

    with open_storage(StorageHarness(policy=Broken())) as harness:
        harness.put_in_l2(*CHUNKS[:5])
        harness.ask(*CHUNKS)
        harness.turn()
        harness.finish("lookup")
        harness.finish("load")
        assert harness.client.counters.snapshot().verbs["load"].outcomes == {Outcome.DONE.value: 2}
