"""The scheduler side over a real server: what is there, what is held, and what happens when it goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from demo.server_process import ServerProcess
from lmcache_devkit import FakeEngine
from lmcache_vllm.placement import CacheGroup, Placement
from lmcache_vllm.request_facts import RequestFacts, StepFacts
from lmcache_vllm.scheduler import SchedulerSide
from lmcache_vllm.server_link import ServerLink
from lmcache_vllm.settings import Settings

CHUNK = 16
TABLE = [list(range(1, 40))]
FACTS = RequestFacts("r", list(range(64)), 64)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    options = ["--l1-size-gb", "0.1", "--chunk-size", str(CHUNK), "--eviction-policy", "LRU"]
    process = ServerProcess(options, tmp_path / "server.log")
    try:
        yield process
    finally:
        process.kill()


@pytest.fixture
def link(server: ServerProcess) -> Iterator[ServerLink]:
    opened = ServerLink(Settings(url=f"tcp://127.0.0.1:{server.port}", heartbeat_seconds=0.2, timeout_seconds=5.0))
    yield opened
    opened.close()


def until(condition: Callable[[], object], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def is_there(link: ServerLink) -> bool:
    return link.server is not None


def held(server: ServerProcess) -> int:
    return int(server.status()["l1"]["held"])


def scheduler(link: ServerLink) -> SchedulerSide:
    place = Placement("model", 1, 0)
    return SchedulerSide(Settings(), place, (CacheGroup(("layer",), 8),), link, workers=1, patience_seconds=5.0)


def test_a_server_that_comes_later_and_is_replaced(server: ServerProcess, link: ServerLink) -> None:
    assert not is_there(link)
    server.start()
    assert until(lambda: is_there(link))
    first = link.server
    assert first
    assert first.chunk_tokens == CHUNK
    server.kill()
    assert until(lambda: not is_there(link))
    assert link.losses >= 1
    server.start()
    assert until(lambda: is_there(link))
    assert link.server != first


def test_an_address_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"lmcache\.url"):
        ServerLink(Settings(url="tcp://127.0.0.1:no-port"))


def test_what_is_referenced_is_released(server: ServerProcess, link: ServerLink) -> None:
    server.start()
    assert until(lambda: link.server)
    side = scheduler(link)
    with FakeEngine(f"tcp://127.0.0.1:{server.port}", model="model") as engine:
        engine.store(list(FACTS.tokens))
        side.on_new_request(FACTS)
        assert side.matched_tokens("r", 0) == (63, True)
        assert until(lambda: held(server) == 4)
        assert side.matched_tokens("r", 16) == (47, True)
        side.on_allocated("r", TABLE, 47)
        assert until(lambda: held(server) == 3)
        (load,) = side.plan(StepFacts({}, lambda _: TABLE)).loads
        assert (load.start, load.end) == (16, 64)
        side.on_worker_results(None, ["r"])
        side.on_finished("r")
        assert until(lambda: held(server) == 0)
        assert side.reset_cache()
        assert until(lambda: server.status()["l1"]["cached"] == 0)


def test_a_server_that_died_costs_the_hit_alone(server: ServerProcess, link: ServerLink) -> None:
    server.start()
    assert until(lambda: link.server)
    side = scheduler(link)
    server.kill()
    side.on_new_request(FACTS)
    assert until(lambda: link.server is None)
    assert side.matched_tokens("r", 0) == (0, False)
    side.on_allocated("r", TABLE, 0)
    assert side.plan(StepFacts({"r": (0, 64)}, lambda _: TABLE)).stores == ()
    assert not side.on_finished("r")
    assert not side.reset_cache()
