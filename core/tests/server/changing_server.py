"""A running server whose adapters come and go and whose settings change, as tests want it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from core.tests.server.test_controller_faults import TOKENS, wait_for
from lmcache_core.app.build import build
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.server import Server
from lmcache_core.app.settings import ServerSettings
from lmcache_core.contracts.events import Event
from lmcache_devkit.fake_engine import FakeEngine

CHUNKS = 20
MEMORY = {"type": "memory"}
StartServer = Callable[..., Server]


@contextmanager
def servers_to_change() -> Iterator[StartServer]:
    """`start(*adapters, **settings)`: servers that know core's own adapters, the suite's among them."""
    servers: list[Server] = []

    def start(*adapters: dict[str, Any], **settings: object) -> Server:
        given: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": 0,
            "chunk_size": 16,
            "l1_size_gb": 1 / 16,
            "l2_adapter": adapters,
            **settings,
        }
        plugins = load_plugins(["devkit", "policies"])
        servers.append(build(ServerSettings(**given), plugins))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.stop(2.0)


@contextmanager
def recorded(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Event]]:
    """What is published meanwhile."""
    events: list[Event] = []
    publish = server._parts.common.bus.publish

    def record(event: Event) -> None:
        events.append(event)
        publish(event)

    with monkeypatch.context() as patch:
        patch.setattr(server._parts.common.bus, "publish", record)
        yield events


def state_of(server: Server, name: str) -> str:
    return server._parts.adapters.state(name).state


def nothing_is_left(server: Server) -> None:
    """Eventually: an adapter client ends a job before the controller that submitted it releases L1."""
    deadline = time.monotonic() + 10
    while any((left := still_there(server)).values()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(left.values()), left
    status = server.status()
    assert status["l1"]["state_counts_add_up"]
    assert not any(thread["restarts"] for thread in status["threads"].values()), status["threads"]


def still_there(server: Server) -> dict[str, int]:
    """What must be zero in an idle server, read at one moment."""
    status = server.status()
    l1 = {name: status["l1"][name] for name in ("held", "quarantined", "leases")}
    return {"backlog_bytes": status["store"]["backlog_bytes"], "lookups_open": status["lookups_open"], **l1}


def prompt(first: int) -> list[int]:
    return [first, *TOKENS][: CHUNKS * 16]


def store_in_l2(engine: FakeEngine, server: Server, tokens: list[int]) -> None:
    assert engine.store(tokens)
    wait_for(lambda: not server.status()["store"]["backlog_bytes"])
    engine.scheduler.clear()


def read_back(engine: FakeEngine, tokens: list[int], request: str) -> int:
    """Chunks that were hit, whose bytes are right."""
    hits = engine.lookup(tokens, request)
    if hits:
        found = engine.retrieve(tokens, request, 0, hits * 16)
        assert found == [engine.content(tokens, chunk) for chunk in range(hits)]
    engine.end(request)
    return hits
