"""Whole servers on one store: each serves what the other stored, from memory of the store and from its files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lmcache_core.app.build import build
from lmcache_core.app.configuration import read_settings
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine
from plugins.l2_lm.tests.running import HOST, running

PROMPTS = [[number, *range(319)] for number in range(4)]
CHUNKS = 20


@contextmanager
def whole_server(store_port: int) -> Iterator[tuple[Any, FakeEngine]]:
    """With an engine at it."""
    given: dict[str, Any] = {
        "host": HOST,
        "port": free_port(),
        "chunk_size": 16,
        "l1_size_gb": 8 / 1024,
        "http_enabled": False,
        "l2_adapter": ({"type": "lm", "host": HOST, "port": store_port},),
    }
    plugins = load_plugins()
    server = build(read_settings(given, plugins), plugins)
    server.start()
    try:
        with FakeEngine(server.info.engine_endpoint) as engine:
            yield server, engine
    finally:
        assert server.stop(10.0)


@pytest.mark.parametrize("is_in_files", [False, True])
def test_a_server_has_hits_of_what_another_stored(is_in_files: bool, tmp_path: Path) -> None:
    folder = tmp_path if is_in_files else None
    with ExitStack() as undo:
        store = undo.enter_context(running(folder=folder))
        with whole_server(store.port) as (first, engine):
            for prompt in PROMPTS:
                assert engine.store(prompt)
            assert first._parts.tiers.store.drain(30)
        assert store.values.stats().values == len(PROMPTS) * CHUNKS
        if is_in_files:  # the next one finds them
            undo.close()
            store = undo.enter_context(running(folder=folder))
        with whole_server(store.port) as (_, engine):
            for number, prompt in enumerate(PROMPTS):
                request = str(number)
                assert engine.lookup(prompt, request) == CHUNKS
                assert engine.retrieve(prompt, request) == [engine.content(prompt, chunk) for chunk in range(CHUNKS)]
                engine.end(request)
