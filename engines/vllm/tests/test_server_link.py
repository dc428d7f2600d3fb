"""The scheduler side over a real server: what is there, what is held, and what happens when it goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from demo.server_process import ServerProcess
from lmcache_devkit import FakeEngine
from lmcache_vllm.blend_choice import BlendChoice
from lmcache_vllm.placement import CacheGroup, Placement
from lmcache_vllm.request_facts import RequestFacts, StepFacts
from lmcache_vllm.scheduler import SchedulerSide
from lmcache_vllm.server_link import ServerLink
from lmcache_vllm.settings import Settings

CHUNK = 16
TABLE = [list(range(1, 40))]
FACTS = RequestFacts("r", list(range(64)), 64)


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    options = [
        "--l1-size-gb",
        "0.1",
        "--chunk-size",
        str(CHUNK),
        "--eviction-policy",
        "LRU",
        *getattr(request, "param", ()),
    ]
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


def scheduler(link: ServerLink, settings: Settings | None = None, patience_seconds: float = 5.0) -> SchedulerSide:
    place = Placement("model", 1, 0)
    return SchedulerSide(
        settings or Settings(), place, (CacheGroup(("layer",), 8),), link, workers=1, patience_seconds=patience_seconds
    )


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


@pytest.mark.parametrize("server", [("--engine-type", "blend")], indirect=True, ids=["blend"])
@pytest.mark.parametrize("end", ["blended", "declined", "aborted", "too few tokens"])
def test_segments_are_held_until_the_end(server: ServerProcess, link: ServerLink, end: str) -> None:
    pytest.importorskip("lmcache_blend")
    server.start()
    assert until(lambda: link.server)
    assert link.blends
    few = 200 if end == "too few tokens" else 4
    side = scheduler(link, Settings(blend="all", blend_min_tokens=few))
    head, document = list(range(100, 100 + CHUNK)), list(range(500, 500 + 2 * CHUNK))
    prompt = [*head, 1, 2, 3, *document, *range(1000, 1200)]
    facts = RequestFacts("r", prompt, len(prompt), blend=BlendChoice("none", (0.15,)))
    with FakeEngine(f"tcp://127.0.0.1:{server.port}", model="model") as engine:
        engine.store(head)
        engine.store(document)

        def found() -> bool:
            """The index learns what was stored a moment later."""
            side.on_new_request(facts)
            if side.matched_tokens("r", 0) == ((CHUNK if few > 100 else 51), True) and held(server) == 3:
                return True
            side.on_finished("r")
            return False

        assert until(found)
        if end != "aborted":
            side.on_allocated("r", TABLE, 0 if end == "declined" else CHUNK if few > 100 else 51)
            plan = side.plan(StepFacts({}, lambda _: TABLE))
            assert len(plan.blend_loads) == (end == "blended")
            side.on_worker_results(None, ["r"])
        if end == "blended":
            (load,) = plan.blend_loads
            places = [(part.old_start, part.start, part.exact) for part in load.segments]
            assert (load.prefix.end, load.end, places) == (CHUNK, 51, [(0, 19, False), (CHUNK, 35, False)])
            assert load.segments[1].follows
        side.on_finished("r")
        assert until(lambda: held(server) == 0)


@pytest.mark.parametrize("server", [("--engine-type", "blend")], indirect=True, ids=["blend"])
def test_a_frozen_server_is_not_waited_for_longer_than_for_a_prefix(server: ServerProcess) -> None:
    pytest.importorskip("lmcache_blend")
    server.start()
    link = ServerLink(Settings(url=f"tcp://127.0.0.1:{server.port}", heartbeat_seconds=30.0))
    try:
        assert until(lambda: link.blends)
        side = scheduler(link, Settings(blend="all", blend_min_tokens=4, lookup_timeout_ms=300), 0.0)
        server.pause()
        side.on_new_request(replace(FACTS, blend=BlendChoice("none", (0.15,))))
        assert side.matched_tokens("r", 0) == (None, False)
        assert until(lambda: side.matched_tokens("r", 0) == (0, False), 3.0)
    finally:
        server.resume()
        link.close()


def test_a_server_that_does_not_blend(server: ServerProcess, link: ServerLink) -> None:
    server.start()
    assert until(lambda: link.server)
    assert not link.blends


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
