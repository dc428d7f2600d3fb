"""A server's status says how each subscriber fares, and subscribers see the server."""

from __future__ import annotations

import json
import threading

import pytest

from core.tests.server.conftest import StartServer
from core.tests.server.test_controller_faults import wait_for
from lmcache_client.errors import LMCacheError
from lmcache_core.builtin.log_subscriber import LogSubscriber
from lmcache_core.contracts.counts import SubscriberState
from lmcache_core.contracts.events import LeasesExpired


def test_each_subscriber_is_in_the_status(start_server: StartServer) -> None:
    server = start_server()
    server._parts.common.bus.publish(LeasesExpired(0, 0))
    wait_for(lambda: server.status()["events"]["subscribers"]["log"]["delivered"] == 1)
    events = json.loads(json.dumps(server.status()["events"]))
    assert events["subscribers"]["log"]["state"] == "ok"
    assert events["subscribers"]["log"]["waiting"] == 0
    assert set(events["subscribers"]["log"]) == {
        "state",
        "waiting",
        "delivered",
        "failed",
        "dropped",
        "cpu_seconds",
        "slowest_seconds",
        "oldest_age_seconds",
        "last_error",
    }
    assert events["delivered"] == sum(queue["delivered"] for queue in events["subscribers"].values())


def test_without_observability_there_are_no_subscribers_and_nothing_is_published(start_server: StartServer) -> None:
    server = start_server(disable_observability=True)
    assert not server._parts.common.bus.wants(LeasesExpired)
    assert server.status()["events"]["subscribers"] == {}
    assert not [name for name in server.status()["threads"] if name.startswith("events-")]


def test_without_the_log_the_others_go_on(start_server: StartServer) -> None:
    assert "log" not in start_server(disable_logging=True).status()["events"]["subscribers"]


def test_a_subscriber_that_hangs_is_a_condition_and_does_not_make_the_server_unhealthy(
    start_server: StartServer,
) -> None:
    release = threading.Event()
    server = start_server(event_subscriber_timeout_seconds=0.01)
    queue = server._parts.common.bus.queue_of("log")
    queue._calls._subscriber.batch_done = release.wait  # type: ignore[method-assign,assignment]
    server._parts.common.bus.publish(LeasesExpired(0, 0))
    wait_for(lambda: queue.status().state is SubscriberState.STUCK)
    assert server.status()["state"] == "degraded"
    assert [(each.condition.name, each.condition.subject) for each in server.conditions()] == [
        ("subscriber_fails", "subscriber log")
    ]
    release.set()
    wait_for(lambda: queue.status().state is SubscriberState.OK and not server.conditions())


def test_a_server_that_cannot_be_built_closes_its_subscribers(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    monkeypatch.setattr(LogSubscriber, "close", lambda subscriber: closed.append("log"))
    taken = start_server().info.engine_endpoint.rpartition(":")[2]
    with pytest.raises(LMCacheError):
        start_server(port=int(taken))
    assert closed == ["log"]
