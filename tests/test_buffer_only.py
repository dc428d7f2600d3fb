"""L1 as a buffer in front of L2: `skip_l1` with `noop` leaves nothing in memory, and everything comes back."""

from __future__ import annotations

from typing import Any

from lmcache_core.app.build import build
from lmcache_core.app.configuration import read_settings
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine

PROMPTS = [[number, *range(319)] for number in range(20)]
CHUNKS = 20


def test_everything_goes_through_l1_and_nothing_stays() -> None:
    port = free_port()
    given: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": port,
        "chunk_size": 16,
        "l1_size_gb": 2 / 1024,  # 170 objects; 400 go through
        "http_enabled": False,
        "eviction_policy": "noop",
        "l2_store_policy": "skip_l1",
        "l2_adapter": ({"type": "memory"}, {"type": "memory"}),
    }
    plugins = load_plugins()
    server = build(read_settings(given, plugins), plugins)
    server.start()
    try:
        with FakeEngine(server.info.engine_endpoint) as engine:
            for prompt in PROMPTS:
                assert engine.store(prompt)
                assert server._parts.tiers.store.drain(30)
            status = server.status()
            assert (status["l1"]["free"], status["l1"]["used_bytes"]) == (status["l1"]["total"], 0)
            assert [row["usage"]["objects"] for row in status["l2"]] == [len(PROMPTS) * CHUNKS] * 2
            for number, prompt in enumerate(PROMPTS):
                request = str(number)
                assert engine.lookup(prompt, request) == CHUNKS
                assert engine.retrieve(prompt, request) == [engine.content(prompt, chunk) for chunk in range(CHUNKS)]
                engine.end(request)
            assert server.status()["l1"]["used_bytes"] == 0, "what was loaded leaves with its last reader"
    finally:
        assert server.stop(10.0)
