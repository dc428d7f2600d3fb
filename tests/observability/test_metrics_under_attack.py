"""Metrics where clients choose names to hurt, and where a scrape comes at a bad time."""

from __future__ import annotations

import os
import signal
import threading
import urllib.error
from collections.abc import Iterator
from functools import partial
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from demo.server_process import HOST, ServerProcess
from lmcache_client.engine_key import EngineKey, encode_tokens
from lmcache_client.operations import END_SESSION, LOOKUP
from lmcache_core.model.names import SALT_CHARS_MAX, SALT_FORBIDDEN
from lmcache_devkit import FakeEngine, free_port
from tests.observability.scrapes import check_sums, scrape
from tests.test_reconfigure import wait_for

MIB = 2**20
CHUNK = 16
SHARE = 2_000
"""More pairs of models and salts than are counted apart."""
PROMPT = encode_tokens(range(2 * CHUNK + 8))
HOSTILE = (
    "",
    "_all",
    "_other",
    "\n",
    '"',
    "\\",
    '",le="1"} 5\nevil_metric 3',
    "\x00\x1b[31m",
    "\u202e",
    "ü",
    "x" * 1500,
)


def salt_of(name: str) -> str:
    """As much of a hostile name as a salt may have."""
    return "".join(char for char in name if char not in SALT_FORBIDDEN)[:SALT_CHARS_MAX]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[ServerProcess, int]]:
    port = free_port()
    options = ["--chunk-size", str(CHUNK), "--l1-size-gb", "0.01", "--prometheus-port", str(port)]
    options += ["--otlp-endpoint", f"http://{HOST}:{free_port()}"]
    options += ["--offer-settings", '{"subscriber:metrics": {"otlp_interval_seconds": 1}}']
    with ServerProcess(options, tmp_path / "server.log") as server:
        yield server, port


def look_up(engine: FakeEngine, model: str, salt: str) -> None:
    key = EngineKey(model, 1, None, PROMPT, 0, 2 * CHUNK, "r", salt)
    for ticket in (engine.scheduler.send(LOOKUP, key, 1), engine.scheduler.send(END_SESSION, "r")):
        engine.scheduler.receive(ticket)


def failed_pushes(port: int) -> float:
    return scrape(port).sum("lmcache_otlp_pushes_total", result="failed")


def has_failed_again(port: int, times: float) -> bool:
    return failed_pushes(port) >= times


@pytest.mark.slow
def test_names_cannot_make_metrics_grow_or_lie(served: tuple[ServerProcess, int]) -> None:
    server, port = served
    process = psutil.Process(server.pid)
    with FakeEngine(f"tcp://{HOST}:{server.port}") as engine:
        pairs = [(name, salt_of(name)) for name in HOSTILE[1:]] + [("model", salt_of(name)) for name in HOSTILE]
        for model, salt in pairs:
            look_up(engine, model, salt)
        found = scrape(port)
        assert "evil_metric" not in found.values
        assert found.sum("lmcache_mp_lookups_requests_total") == len(pairs)
        done, sizes, memory = len(pairs), [], []
        for _ in range(3):
            for _ in range(SHARE):
                done += 1
                look_up(engine, f"model-{done}", f"salt-{done}")
            found = scrape(port)
            check_sums(found)
            assert found.sum("lmcache_mp_lookups_requests_total") == done
            assert found.sum("lmcache_mp_lookup_requested_tokens_total") == done * (2 * CHUNK + 8)
            sizes.append(len(found.text))
            # A push takes memory for as long as it runs, so one that has begun after these lookups is to have ended.
            failed = failed_pushes(port)
            wait_for(partial(has_failed_again, port, failed + 2))
            memory.append(process.memory_info().rss)
        assert sizes[2] < 1.02 * sizes[0]
        # The first share fills what is bounded; a share may also fill what the one before it has freed.
        assert min(after - before for before, after in pairwise(memory)) < 8 * MIB, memory
        assert "lmcache_hit_rate_ceiling" in scrape(port).families()


def test_a_scrape_while_the_server_stops_is_whole_or_nothing(served: tuple[ServerProcess, int]) -> None:
    server, port = served
    scrapes, over = [], threading.Event()

    def keep_scraping() -> None:
        while not over.is_set():
            try:
                scrapes.append(scrape(port))
            except (urllib.error.URLError, HTTPException, OSError):
                continue

    threads = [threading.Thread(target=keep_scraping) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: len(scrapes) > 5)
        os.kill(server.pid, signal.SIGTERM)
        assert server.stop() == 0
    finally:
        over.set()
        for thread in threads:
            thread.join()
    for each in scrapes:
        assert each.text.endswith("# EOF\n")
        check_sums(each)
    assert "Traceback" not in server.log, server.log
