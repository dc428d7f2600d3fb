"""A policy that names anything or raises, and a controller that trips: nothing is lost, and the next turn comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from lmcache_core.contracts.policies import AccessFacts, EvictionDemand, EvictionPolicy, InsertFacts
from plugins.policies.tests.l2_eviction.eviction_harness import EvictionHarness


class Wild(EvictionPolicy):
    """Names what it likes, and raises where it likes."""

    def __init__(self) -> None:
        self.names: Sequence[int] = ()
        self.fault: BaseException | None = None

    def on_insert(self, slots: Sequence[int], facts: InsertFacts) -> None:
        self._maybe_raise()

    def on_access(self, slots: Sequence[int], facts: AccessFacts) -> None:
        self._maybe_raise()

    def on_remove(self, slots: Sequence[int]) -> None:
        self._maybe_raise()

    def victims(self, demand: EvictionDemand, may_evict: Callable[[int], bool]) -> Sequence[int]:
        self._maybe_raise()
        return self.names

    def _maybe_raise(self) -> None:
        if self.fault:
            raise self.fault


def test_a_policy_that_names_anything_deletes_only_what_is_there_once(
    open_harness: Callable[..., EvictionHarness],
) -> None:
    policy = Wild()
    policy.names = (-1, 5, 5, 1000, 7)
    eviction_harness = open_harness(policy)
    eviction_harness.store(*range(90))
    assert eviction_harness.delete() == [5, 7]


@pytest.mark.parametrize("fault", [RuntimeError("no"), SystemExit("no")])
def test_a_policy_that_raises_stops_nothing(open_harness: Callable[..., EvictionHarness], fault: BaseException) -> None:
    policy = Wild()
    policy.fault = fault
    eviction_harness = open_harness(policy)
    eviction_harness.store(*range(90))
    eviction_harness.look(3)
    assert eviction_harness.deletes() == []
    policy.fault, policy.names = None, (3,)
    eviction_harness.later()
    assert eviction_harness.delete() == [3]


@pytest.mark.parametrize("method", ["_learn", "_note_deleted", "_begin_cycle", "_delete_some"])
def test_a_controller_that_trips_goes_on(
    eviction_harness: EvictionHarness, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    original, tripped = getattr(eviction_harness.eviction, method), list[str]()

    def once(*arguments: object) -> object:
        if not tripped:
            tripped.append(method)
            raise RuntimeError("injected")
        return original(*arguments)

    monkeypatch.setattr(eviction_harness.eviction, method, once)
    for numbers in (range(40), range(40, 90)):
        try:
            eviction_harness.store(*numbers)
            eviction_harness.delete()
        except (RuntimeError, StopIteration):
            eviction_harness.eviction._victims.clear()
    for _ in range(5):
        eviction_harness.later()
        if eviction_harness.deletes():
            eviction_harness.delete()
    assert tripped
    assert len(eviction_harness.adapter.objects) <= 80
    assert eviction_harness.eviction.status()["known_objects"] == len(eviction_harness.adapter.objects)
