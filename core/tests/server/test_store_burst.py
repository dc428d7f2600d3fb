"""Four times as much as L1 holds, stored as fast as an engine can, over a link of 50 MB/s into a backend that is full soon.

Every object that was stored is in L1, in L2, or counted as dropped or evicted; and whatever is served is right."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from core.tests.injected import mock
from core.tests.server.test_controller_faults import wait_for
from lmcache_core.app.build import build
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.server import Server
from lmcache_core.app.settings import ServerSettings
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine

L1_BYTES = 32 << 20
L2_BYTES = 24 << 20
LINK_BYTES_PER_SECOND = 50e6
CHUNKS = 16
TOKENS = CHUNKS * 16
OBJECT_BYTES = 1 << 17
"""The payload of a chunk."""
PROMPTS = 4 * L1_BYTES // (CHUNKS * OBJECT_BYTES)


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(**settings: object) -> Server:
        given = {
            "host": "127.0.0.1",
            "port": free_port(),
            "chunk_size": 16,
            "l1_size_gb": L1_BYTES / 2**30,
            "disable_logging": True,
            **settings,
        }
        servers.append(build(ServerSettings(**given), load_plugins(["devkit", "policies"])))  # type: ignore[arg-type]
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.stop(0.0)


def prompt(number: int) -> list[int]:
    return [number, *range(TOKENS - 1)]


def slow_adapter(bytes_per_second: float = LINK_BYTES_PER_SECOND, **more: object) -> dict[str, object]:
    return {**mock(L2_BYTES / 2**30, bytes_per_second), **more}


@pytest.mark.parametrize("rule", ["newest", "oldest", "deepest"])
def test_a_burst_is_accounted_for_to_the_object(start: Callable[..., Server], rule: str) -> None:
    adapter = slow_adapter(eviction={"eviction_policy": "LRU"})
    server = start(l2_adapter=(adapter,), l2_store_drop=rule)
    with FakeEngine(server.info.engine_endpoint, layers=2, hidden=1024) as engine:
        for number in range(PROMPTS):
            assert engine.store(prompt(number), f"s{number}")
            now = server.status()
            assert now["l1"]["used_bytes"] <= L1_BYTES
            account = now["store"]["adapters"]["mock"]
            assert account["backlog_bytes"] <= L1_BYTES
            check_account(account)
        assert server._parts.tiers.store.drain(30)
        # How much of the burst was dropped depends on the machine; then L2 is filled without haste.
        prompts = PROMPTS
        while server.status()["store"]["adapters"]["mock"]["stored"] * OBJECT_BYTES < 2 * L2_BYTES:
            assert engine.store(prompt(prompts), f"s{prompts}")
            assert server._parts.tiers.store.drain(30)
            prompts += 1

        server._parts.tiers.eviction.wake()
        wait_for(lambda: evicted_or_within_watermark(server))
        status: dict[str, Any] = {}

        def every_object_is_in_l1_or_was_evicted() -> bool:
            """While one is evicted, a status may show it as both."""
            status.update(server.status())
            return bool(status["chunks"]["stored"] == status["l1"]["cached"] + status["l1"]["evicted"])

        wait_for(every_object_is_in_l1_or_was_evicted)
        account, l1, l2 = status["store"]["adapters"]["mock"], status["l1"], status["l2"][0]
        stored = status["chunks"]["stored"]
        check_account(account)
        assert account["waiting"] == account["in_flight"] == l1["held"] == 0
        # And it went to L2, or was dropped on the way; what arrived is there or was evicted.
        assert stored == account["admitted"] + account["merged"] + status["store"]["refused"]
        assert account["merged"] == 0
        assert account["stored"] == l2["usage"]["objects"] + l2["eviction"]["evicted"]
        assert account["dropped"] > 0, "the burst was none"
        assert l2["eviction"]["evicted"] > 0, "L2 never was full"
        assert l2["usage"]["used_bytes"] <= L2_BYTES

        found = 0
        for number in range(prompts):
            tokens, request = prompt(number), f"r{number}"
            hits = engine.lookup(tokens, request)
            if hits:
                end = hits * 16
                assert engine.retrieve(tokens, request, 0, end) == [engine.content(tokens, c) for c in range(hits)]
            engine.end(request)
            found += hits
        assert found > 0
        wait_for(lambda: server.status()["l1"]["held"] == 0)
        assert server.status()["prefetch"]["rejected"] == 0


def check_account(account: dict[str, int]) -> None:
    settled = account["stored"] + account["failed"] + account["dropped"]
    assert account["admitted"] == settled + account["waiting"] + account["in_flight"], account


def evicted_or_within_watermark(server: Server) -> bool:
    """Nothing goes on in L2 any more."""
    status = server.status()["l2"][0]
    usage = status["usage"]
    return not status["eviction"]["deleting"] and bool(usage["used_bytes"] <= 0.8 * usage["capacity_bytes"])


def knows_all(server: Server) -> bool:
    """The thread of the eviction has handled what it was notified of."""
    status = server.status()["l2"][0]
    return bool(status["eviction"]["known_objects"] == status["usage"]["objects"])


def test_a_stop_waits_for_the_backlog_no_longer_than_its_limit(start: Callable[..., Server]) -> None:
    server = start(l2_adapter=(slow_adapter(bytes_per_second=1e3),))
    with FakeEngine(server.info.engine_endpoint, layers=2, hidden=1024) as engine:
        assert engine.store(prompt(1))
        wait_for(lambda: server.status()["store"]["adapters"]["mock"]["in_flight"])
    started = time.monotonic()
    assert not server.stop(0.2)
    assert time.monotonic() - started >= 0.2


def test_l2_makes_room_and_goes_on_taking_stores(start: Callable[..., Server]) -> None:
    """The `memory` adapter from end to end: full, evicted, and what came last is there."""
    memory = {"type": "memory", "max_size_gb": L2_BYTES / 2**30}
    server = start(l2_adapter=({**memory, "eviction": {"eviction_policy": "LRU", "eviction_ratio": 0.3}},))
    with FakeEngine(server.info.engine_endpoint, layers=2, hidden=1024) as engine:
        for number in range(PROMPTS):
            assert engine.store(prompt(number))
            wait_for(lambda: not server.status()["store"]["backlog_bytes"])
            wait_for(lambda: evicted_or_within_watermark(server))
        wait_for(lambda: knows_all(server))
        status = server.status()
        account, l2 = status["store"]["adapters"]["memory"], status["l2"][0]
        assert (account["stored"], account["failed"], account["dropped"]) == (PROMPTS * CHUNKS, 0, 0)
        assert account["stored"] == l2["usage"]["objects"] + l2["eviction"]["evicted"]
        assert l2["eviction"]["known_objects"] == l2["usage"]["objects"]
        assert l2["eviction"]["known_bytes"] == l2["usage"]["used_bytes"]
        engine.scheduler.clear()
        tokens = prompt(PROMPTS - 1)
        assert engine.lookup(tokens, "last") == CHUNKS
        assert engine.retrieve(tokens, "last") == [engine.content(tokens, chunk) for chunk in range(CHUNKS)]
        engine.end("last")
        engine.scheduler.clear()
        assert engine.lookup(prompt(0), "first") == 0


def test_one_adapter_whose_backend_is_down_costs_the_other_nothing(
    start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object) -> None:
        raise PermissionError("injected")

    server = start(l2_adapter=({"type": "memory"}, {"type": "memory"}))
    monkeypatch.setattr(server._parts.tiers.l2.clients[0].adapter, "store", down)
    with FakeEngine(server.info.engine_endpoint, layers=2, hidden=1024) as engine:
        for number in range(6):
            assert engine.store(prompt(number))
        assert server._parts.tiers.store.drain(30)
        status = server.status()
        accounts = status["store"]["adapters"]
        assert (accounts["memory"]["failed"], accounts["memory-2"]["stored"]) == (6 * CHUNKS, 6 * CHUNKS)
        assert [row["healthy"] for row in status["l2"]] == [False, True]
        assert server.status()["state"] == "degraded", "the other one works"
        engine.scheduler.clear()
        assert engine.lookup(prompt(3), "r") == CHUNKS
        assert engine.retrieve(prompt(3), "r") == [engine.content(prompt(3), chunk) for chunk in range(CHUNKS)]
