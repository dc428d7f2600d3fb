"""The slowest requests are kept, with what they spent their time with."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_devkit import SubscriberSuite
from lmcache_observability.tracing.settings import SlowRequestsSettings
from lmcache_observability.tracing.slow_requests import SlowRequestsSubscriber
from lmcache_observability.tracing.slowest import SlowestRequests, SlowRequest
from lmcache_observability.tracing.steps import waited_seconds
from plugins.observability.tests.server_stand_in import ServerStandIn
from plugins.observability.tests.tracing.stand_ins import (
    ended,
    feed,
    loaded,
    looked_up,
    retrieved,
    stored,
    stored_in_l2,
    whole_request,
)


class TestSlowRequests(SubscriberSuite):
    offer = "slow_requests"

    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"pending_requests_max": 500}


def slow(**settings: Any) -> SlowRequestsSubscriber:
    subscriber = SlowRequestsSubscriber(SlowRequestsSettings.model_validate(settings))
    subscriber.begin(ServerStandIn())
    return subscriber


def kept(subscriber: SlowRequestsSubscriber, now: float = 200.0) -> list[SlowRequest]:
    return subscriber.slowest.list(1000, now)


def ids(subscriber: SlowRequestsSubscriber, now: float = 200.0) -> list[str]:
    return [request.request_id for request in kept(subscriber, now)]


def test_a_request_is_kept_with_its_steps() -> None:
    subscriber = slow()
    feed(subscriber, whole_request())
    (request,) = kept(subscriber)
    assert [step.name for step in request.steps] == [
        "lmcache.lookup",
        "lmcache.prefetch",
        "lmcache.l2.lookup",
        "lmcache.l2.load",
        "lmcache.retrieve",
        "lmcache.store",
    ]
    assert (request.seconds, request.model_name, request.incomplete) == (1.75, "m", False)


def test_only_the_slowest_are_kept() -> None:
    subscriber = slow(requests_max=3)
    for number, seconds in enumerate([0.5, 0.1, 0.9, 0.3, 0.7, 0.2]):
        feed(subscriber, [looked_up(f"r{number}", seconds=seconds), ended(f"r{number}")])
    assert ids(subscriber) == ["r2", "r4", "r0"]
    feed(
        subscriber, [looked_up("r7", seconds=0.1), retrieved("r7", seconds=0.3), stored("r7", seconds=0.4), ended("r7")]
    )
    assert ids(subscriber) == ["r2", "r7", "r4"]


def test_what_is_faster_than_all_that_are_kept_is_released_at_once() -> None:
    slowest = SlowestRequests(1, 1000.0)
    assert slowest.is_slow(0.1, 1.0)
    slowest.add(SlowRequest("r", 1, "m", "", 1.0, 0.5, []))
    assert not slowest.is_slow(0.4, 1.0)
    assert slowest.is_slow(0.6, 1.0)


def test_a_store_to_l2_that_ends_later_is_added() -> None:
    subscriber = slow()
    feed(subscriber, [*whole_request(), stored_in_l2(), stored(at=112.0), stored_in_l2("another")])
    (request,) = kept(subscriber)
    assert [step.name for step in request.steps][-2:] == ["lmcache.l2.store", "lmcache.store"]
    feed(subscriber, [looked_up("next"), ended("next")])
    assert len(kept(subscriber)) == 2


def test_what_comes_late_is_known_for_a_while() -> None:
    subscriber = slow(pending_requests_max=4)
    feed(subscriber, [looked_up("slow"), ended("slow")])
    for number in range(4):
        feed(subscriber, [looked_up(f"r{number}"), ended(f"r{number}")])
    feed(subscriber, [stored_in_l2("slow")])
    assert max(len(request.steps) for request in kept(subscriber)) == 2


def test_slow_requests_of_long_ago_go() -> None:
    subscriber = slow(window_seconds=100.0)
    feed(subscriber, [looked_up("old", at=10.0, seconds=9.0), ended("old", at=10.0)])
    feed(subscriber, [looked_up("newer", at=80.0, seconds=0.1), ended("newer", at=80.0)])
    assert ids(subscriber, 80.0) == ["old", "newer"]
    feed(subscriber, [looked_up("new", at=160.0, seconds=0.2), ended("new", at=160.0)])
    assert ids(subscriber, 160.0) == ["new", "newer"]
    assert ids(subscriber, 181.0) == ["new"], "nothing happened since, and it is too old all the same"
    feed(subscriber, [looked_up("last", at=900.0, seconds=0.1), ended("last", at=900.0)])
    assert ids(subscriber, 900.0) == ["last"]


def test_a_request_whose_end_is_lost_is_kept_as_incomplete() -> None:
    subscriber = slow(pending_requests_max=1)
    feed(subscriber, [looked_up("lost"), retrieved("lost"), looked_up("other")])
    (request,) = kept(subscriber)
    assert (request.request_id, request.incomplete) == ("lost", True)


def test_a_request_that_the_server_ends_is_kept_as_incomplete() -> None:
    subscriber = slow()
    feed(subscriber, [looked_up("dead"), retrieved("dead"), ended("dead", incomplete=True)])
    (request,) = kept(subscriber)
    assert (request.request_id, request.incomplete, len(request.steps)) == ("dead", True, 2)
    assert request.ended == retrieved("dead").at, "what it did last"
    feed(subscriber, [stored("dead"), ended("dead")])
    assert subscriber.open_requests == 0
    assert [len(request.steps) for request in kept(subscriber)] == [3]


def test_salts_are_digests() -> None:
    subscriber = slow()
    feed(subscriber, [looked_up(salt="tenant-secret"), ended()])
    assert "tenant-secret" not in repr(kept(subscriber))


def test_steps_side_by_side_count_once() -> None:
    events = [looked_up(), retrieved(at=101.5, seconds=0.5), retrieved(at=101.6, seconds=0.5)]
    assert round(waited_seconds(events), 6) == 1.6
    assert waited_seconds([stored_in_l2()]) == 0


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), max_size=12))
def test_waiting_is_the_length_of_the_union(spans: list[tuple[int, int]]) -> None:
    events = [stored(at=max(span), seconds=max(span) - min(span)) for span in spans]
    assert waited_seconds(events) == len({second for span in spans for second in range(min(span), max(span))})


@given(st.lists(st.floats(0, 100), max_size=60), st.integers(1, 8))
def test_the_slowest_of_one_window_are_exact(seconds: list[float], most: int) -> None:
    slowest = SlowestRequests(most, 1000.0)
    for number, each in enumerate(seconds):
        if slowest.is_slow(each, 1.0):
            slowest.add(SlowRequest(str(number), 1, "m", "", 1.0, each, []))
    assert [request.seconds for request in slowest.list(most, 1.0)] == sorted(seconds, reverse=True)[:most]


def test_a_clock_that_is_put_back_keeps_nothing_for_longer() -> None:
    subscriber = slow(window_seconds=100.0, requests_max=2)
    for number in range(3):
        feed(subscriber, [looked_up(f"ahead{number}", at=90_000.0, seconds=9.0), ended(f"ahead{number}", at=90_000.0)])
    feed(subscriber, [looked_up("now", at=50.0, seconds=0.1), ended("now", at=50.0)])
    assert "now" in ids(subscriber, 50.0)


def test_a_fast_request_takes_no_place_from_a_slow_one_of_its_name() -> None:
    subscriber = slow()
    for at, seconds in ((100.0, 9.0), (150.0, 0.25)):
        feed(subscriber, [looked_up(at=at, seconds=seconds), ended(at=at)])
    assert [request.seconds for request in kept(subscriber)] == [9.0, 0.25]


def test_what_comes_late_belongs_to_the_last_one_of_its_name() -> None:
    subscriber = slow()
    for at, seconds in ((100.0, 9.0), (150.0, 0.25)):
        feed(subscriber, [looked_up(at=at, seconds=seconds), ended(at=at)])
    feed(subscriber, [stored_in_l2()])
    assert [len(request.steps) for request in kept(subscriber)] == [1, 2]


def test_requests_of_two_tenants_that_are_called_alike_are_distinguished() -> None:
    subscriber = slow(salts="plain")
    feed(subscriber, [looked_up(salt="one"), looked_up(at=101.1, salt="two"), retrieved(salt="two"), ended()])
    feed(subscriber, [stored(salt="one"), stored(at=103.5, salt="two")])
    requests = {request.cache_salt: request for request in kept(subscriber)}
    assert requests["one"].incomplete
    assert not requests["two"].incomplete
    assert [step.name for step in requests["one"].steps] == ["lmcache.lookup"]
    assert [step.name for step in requests["two"].steps] == ["lmcache.lookup", "lmcache.retrieve", "lmcache.store"]


def test_an_engine_cannot_make_it_grow() -> None:
    subscriber = slow(pending_requests_max=100_000)
    feed(subscriber, [looked_up("r" * 5000), looked_up("s", salt="s" * 5000), looked_up("")])
    assert subscriber.open_requests == 0
    feed(subscriber, [loaded("t"), looked_up("t", salt="s" * 5000)])
    assert subscriber.open_requests == 0
    for number in range(2000):
        feed(subscriber, [retrieved(f"r{number}") for _ in range(100)], done=False)
    assert subscriber.open_requests == (1 << 16) // (100 - 16)
