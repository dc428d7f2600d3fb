"""Eviction in a backend that outlives the server: what an earlier server stored is listed, and goes first."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmcache_core.app.build import build
from lmcache_core.app.configuration import read_settings
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.server import Server
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine

CAPACITY = 16 << 20
CHUNKS = 8
OBJECT_BYTES = (1 << 17) + 4096


def start(path: Path) -> Server:
    port = free_port()
    eviction = {"eviction_policy": "LRU", "trigger_watermark": 0.75}
    given: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": port,
        "chunk_size": 16,
        "l1_size_gb": 1 / 16,
        "http_enabled": False,
        "l2_adapter": (
            {"type": "fs", "base_path": str(path), "max_capacity_gb": CAPACITY / 2**30, "eviction": eviction},
        ),
    }
    plugins = load_plugins()
    server = build(read_settings(given, plugins), plugins)
    server.start()
    return server


def prompt(number: int) -> list[int]:
    return [number, *range(CHUNKS * 16 - 1)]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def store(server: Server, engine: FakeEngine, numbers: range) -> None:
    for number in numbers:
        assert engine.store(prompt(number))
        assert server._parts.tiers.store.drain(20)
        wait_for(lambda: is_settled(server.status()["l2"][0]))


def is_settled(status: dict[str, Any]) -> bool:
    """Nothing has to be deleted, and nothing is being deleted."""
    return not status["eviction"]["deleting"] and bool(status["usage"]["used_bytes"] <= 0.75 * CAPACITY)


def test_what_an_earlier_server_stored_is_listed_and_goes_first(tmp_path: Path) -> None:
    server = start(tmp_path)
    try:
        with FakeEngine(server.info.engine_endpoint, layers=2, hidden=1024) as engine:
            store(server, engine, range(10))
    finally:
        assert server.stop(10.0)

    server = start(tmp_path)
    try:
        with FakeEngine(server.info.engine_endpoint, layers=2, hidden=1024) as engine:
            wait_for(lambda: server.status()["l2"][0]["eviction"]["listing"] == "done")
            wait_for(lambda: server.status()["l2"][0]["eviction"]["known_objects"] == 10 * CHUNKS)
            eviction = server.status()["l2"][0]["eviction"]
            assert eviction["known_bytes"] == server.status()["l2"][0]["usage"]["used_bytes"] == 80 * OBJECT_BYTES
            store(server, engine, range(10, 20))
            status = server.status()["l2"][0]
            assert status["eviction"]["evicted"] == 20 * CHUNKS - status["usage"]["objects"] > 0
            engine.scheduler.clear()
            for number in range(20):
                hits = engine.lookup(prompt(number), str(number))
                if hits:
                    right = [engine.content(prompt(number), chunk) for chunk in range(hits)]
                    assert engine.retrieve(prompt(number), str(number), 0, hits * 16) == right
                assert number < 15 or hits == CHUNKS
                engine.end(str(number))
    finally:
        assert server.stop(10.0)
