"""After vLLM's cache is reset, no worker finds anything of before."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.server_process import ServerProcess
from engines.vllm.tests.scheduler_rig import PROMPT, Rig
from engines.vllm.tests.test_worker_transfers import OPTIONS, TOKENS
from engines.vllm.tests.worker_kit import HEADS, LAYERS, WIDTH, fused_hnd, rig, until
from lmcache_client.channel import EngineChannel
from lmcache_devkit import FakeEngine
from lmcache_vllm.metadata import WorkerReport
from lmcache_vllm.placement import CacheGroup, Placement
from lmcache_vllm.request_facts import RequestFacts, StepFacts
from lmcache_vllm.scheduler import SchedulerSide
from lmcache_vllm.server_link import ServerLink
from lmcache_vllm.settings import Settings

FACTS = RequestFacts("r", list(TOKENS), len(TOKENS))
TABLE = [list(range(1, 9))]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(OPTIONS, tmp_path / "server.log") as server:
        yield server


def scheduler(server: ServerProcess, groups: tuple[CacheGroup, ...]) -> SchedulerSide:
    settings = Settings(url=f"tcp://127.0.0.1:{server.port}", heartbeat_seconds=0.3)
    link = ServerLink(settings)
    side = SchedulerSide(settings, Placement("model", 1, 0), groups, link, workers=1, patience_seconds=5.0)
    assert until(lambda: link.server is not None)
    return side


def test_what_a_waiting_request_holds_is_dropped_as_well(server: ServerProcess) -> None:
    """Its turn comes after the reset, and what was found for it before is of the old weights."""
    side = scheduler(server, (CacheGroup(("layer",), 8),))
    with FakeEngine(f"tcp://127.0.0.1:{server.port}", model="model") as engine:
        assert engine.store(list(TOKENS))
        side.on_new_request(FACTS)
        assert side.matched_tokens("r", 0) == (len(TOKENS) - 1, True)
        assert side.reset_cache()
        assert engine.lookup(list(TOKENS), "other") == 0
        assert side.matched_tokens("r", 0) == (0, False)
    side.close()
    assert until(lambda: server.status()["l1"]["held"] == 0)


def test_a_store_that_is_not_published_yet_is_under_way(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, proceed = threading.Event(), threading.Event()
    real = EngineChannel.commit_store

    def late(self: EngineChannel, *arguments: Any, **more: Any) -> Any:
        reached.set()
        assert proceed.wait(20)
        return real(self, *arguments, **more)

    with rig(server.port, fused_hnd()) as worker:
        side = scheduler(server, worker.paged.groups)
        side.on_new_request(FACTS)
        assert side.matched_tokens("r", 0) == (0, False)
        side.on_allocated("r", TABLE, 0)
        monkeypatch.setattr(EngineChannel, "commit_store", late)
        plan = side.plan(StepFacts({"r": (0, len(TOKENS))}, lambda _: TABLE))
        worker.begin(plan)
        assert reached.wait(10)
        worker.step()
        side.on_worker_results(WorkerReport(dict(worker.over)), [])
        assert not side.reset_cache()
        proceed.set()
        assert worker.until(lambda: worker.counts.get("stores") == 1)
        worker.step()
        side.on_worker_results(WorkerReport(dict(worker.over)), [])
        assert side.reset_cache()
        with FakeEngine(f"tcp://127.0.0.1:{server.port}", layers=LAYERS, hidden=HEADS * 2 * WIDTH) as stock:
            assert stock.lookup(TOKENS) == 0
        side.close()


def test_the_cache_is_not_dropped_while_something_is_being_stored() -> None:
    """What is on its way would be there again afterwards."""
    rig = Rig()
    rig.load(PROMPT)
    (store,) = rig.step(0, 32).stores
    assert not rig.side.reset_cache()
    rig.side.on_worker_results(WorkerReport({store.id: 1}), [])
    assert rig.side.reset_cache()


def test_a_store_that_was_fenced_is_under_way_until_workers_say_that_it_is_not() -> None:
    """A fence waits for a copy, which is published afterwards."""
    rig = Rig()
    rig.load(PROMPT)
    (store,) = rig.step(0, 32).stores
    assert rig.step(preempted=frozenset({"r"})).fence == {store.id}
    assert not rig.side.reset_cache()
    rig.side.on_worker_results(WorkerReport({store.id: 1}), [])
    assert rig.side.reset_cache()


def test_what_is_being_loaded_is_not_dropped_yet() -> None:
    rig = Rig()
    rig.store(PROMPT, 16)
    assert rig.load(PROMPT).loads
    assert not rig.side.reset_cache()
    rig.side.on_finished("r")
    assert not rig.side.reset_cache()
    rig.side.on_worker_results(None, ["r"])
    assert rig.side.reset_cache()
