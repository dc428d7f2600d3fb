"""What `GET /requests/slowest` answers."""

from __future__ import annotations

import json

import pytest

from lmcache_core import HttpRefusal, HttpRequest, HttpRoute, ServerView, Subscriber
from lmcache_observability.tracing.settings import SlowRequestsSettings
from lmcache_observability.tracing.slow_requests import SlowRequestsSubscriber
from lmcache_observability.tracing.slowest_route import SlowestRequests, open_requests_routes
from lmcache_observability.tracing.trace_context import trace_context, trace_id_text
from plugins.observability.tests.server_stand_in import ServerStandIn
from plugins.observability.tests.tracing.stand_ins import ended, feed, looked_up, whole_request


class Context:
    def __init__(self, subscriber: Subscriber | None) -> None:
        self._subscriber = subscriber

    @property
    def server(self) -> ServerView:
        return ServerStandIn()

    def subscriber(self, name: str) -> Subscriber | None:
        return self._subscriber if name == "slow_requests" else None

    def service(self, name: str) -> None:
        return None


def route(subscriber: Subscriber | None) -> HttpRoute:
    (only,) = open_requests_routes(None, Context(subscriber))
    return only


def request(**query: str) -> HttpRequest:
    return HttpRequest({}, query, {}, b"")


@pytest.fixture
def subscriber() -> SlowRequestsSubscriber:
    subscriber = SlowRequestsSubscriber(SlowRequestsSettings.model_validate({"window_seconds": 1e12}))
    subscriber.begin(ServerStandIn())
    feed(subscriber, [*whole_request(), looked_up("fast", seconds=0.001), ended("fast")])
    return subscriber


def test_the_slowest_come_first_with_their_steps(subscriber: SlowRequestsSubscriber) -> None:
    answer = SlowestRequests.model_validate(json.loads(json.dumps(route(subscriber).answer(request()).body)))
    assert [each.request_id for each in answer.requests] == ["r", "fast"]
    slowest = answer.requests[0]
    assert slowest.trace_id == trace_id_text(trace_context(None, "boot", "r").trace_id)
    assert [step.name for step in slowest.steps][:2] == ["lmcache.lookup", "lmcache.prefetch"]
    assert slowest.steps[0].after_seconds == 0
    assert slowest.steps[-1].after_seconds == 2.5
    assert answer.window_seconds == 1e12


def test_a_limit_is_obeyed(subscriber: SlowRequestsSubscriber) -> None:
    assert len(route(subscriber).answer(request(limit="1")).body["requests"]) == 1


@pytest.mark.parametrize("limit", ["0", "-1", "x", "1001", "\u0661", "", "1" * 5000])
def test_a_wrong_limit_is_refused(limit: str, subscriber: SlowRequestsSubscriber) -> None:
    with pytest.raises(HttpRefusal, match="from 1 to 1000") as refusal:
        route(subscriber).answer(request(limit=limit))
    assert refusal.value.status in route(subscriber).refusals
    assert len(refusal.value.detail) < 100


def test_without_the_subscriber_it_says_what_to_do() -> None:
    with pytest.raises(HttpRefusal, match="slow_requests") as refusal:
        route(None).answer(request())
    assert refusal.value.status == 404
