"""A policy that names anything or raises, and a controller that trips: nothing is lost, and the next turn comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from core.tests.controllers.eviction_site import Site
from lmcache_core.contracts.policies import AccessFacts, EvictionDemand, EvictionPolicy, InsertFacts


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


def test_a_policy_that_names_anything_deletes_only_what_is_there_once(open_site: Callable[..., Site]) -> None:
    policy = Wild()
    policy.names = (-1, 5, 5, 1000, 7)
    site = open_site(policy)
    site.store(*range(90))
    assert site.delete() == [5, 7]


@pytest.mark.parametrize("fault", [RuntimeError("no"), SystemExit("no")])
def test_a_policy_that_raises_stops_nothing(open_site: Callable[..., Site], fault: BaseException) -> None:
    policy = Wild()
    policy.fault = fault
    site = open_site(policy)
    site.store(*range(90))
    site.look(3)
    assert site.deletes() == []
    policy.fault, policy.names = None, (3,)
    site.later()
    assert site.delete() == [3]


@pytest.mark.parametrize("method", ["_learn", "_deleted", "_begin_cycle", "_delete_some"])
def test_a_controller_that_trips_goes_on(site: Site, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    original, tripped = getattr(site.eviction, method), list[str]()

    def once(*arguments: object) -> object:
        if not tripped:
            tripped.append(method)
            raise RuntimeError("injected")
        return original(*arguments)

    monkeypatch.setattr(site.eviction, method, once)
    for numbers in (range(40), range(40, 90)):
        try:
            site.store(*numbers)
            site.delete()
        except (RuntimeError, StopIteration):
            site.eviction._resume()
    for _ in range(5):
        site.later()
        if site.deletes():
            site.delete()
    assert tripped
    assert len(site.adapter.objects) <= 80
    assert site.eviction.status()["known_objects"] == len(site.adapter.objects)
