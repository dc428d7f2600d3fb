"""Documents in ever new orders, over a real server that evicts as it does by default: those that leave come back."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from demo.server_process import ServerProcess
from lmcache_client import EngineKey
from lmcache_devkit import FakeEngine
from lmcache_vllm.blend_choice import BlendChoice
from lmcache_vllm.metadata import BlendLoad, BlendLoaded, BlendResult, StepPlan, Transfer, WorkerReport
from lmcache_vllm.placement import CacheGroup, Placement
from lmcache_vllm.request_facts import RequestFacts, StepFacts
from lmcache_vllm.scheduler import SchedulerSide
from lmcache_vllm.server_link import ServerLink
from lmcache_vllm.settings import Settings

SIZE = 16
TOKENS = 61
"""Of a document: four chunks, the last one short."""
CHUNKS = -(-TOKENS // SIZE)
DOCUMENTS, OF_A_PROMPT, ORDERS, WINDOW = 50, 10, 1000, 100
END = 999_999
SLOT_BYTES = 12_288
HEADING = SIZE + 5
"""Tokens that only one prompt has, before its documents: stored, and never asked for again."""
CHOICE = BlendChoice("none", (0.0,), asked=True)
PLACE = Placement("model", 1, 0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Room for half as much again as the documents."""
    gib = 1.5 * DOCUMENTS * CHUNKS * SLOT_BYTES / (1 << 30)
    options = ["--l1-size-gb", f"{gib:.6f}", "--eviction-policy", "LRU", "--chunk-size", str(SIZE)]
    with ServerProcess([*options, "--engine-type", "blend", "--session-ttl-seconds", "1"], tmp_path / "log") as process:
        yield process


class Engine:
    """The connector's scheduler, and a worker that stores what it says, and says that it has loaded and blended the rest."""

    def __init__(self, port: int, separator: tuple[int, ...]) -> None:
        settings = Settings(url=f"tcp://127.0.0.1:{port}", blend="all", blend_min_tokens=SIZE, timeout_seconds=10.0)
        self.link = ServerLink(settings)
        self.worker = FakeEngine(f"tcp://127.0.0.1:{port}")
        self.worker.register()
        self.side = SchedulerSide(
            settings,
            PLACE,
            (CacheGroup(("layer",), SIZE),),
            self.link,
            workers=1,
            separator=separator,
            patience_seconds=5,
        )
        deadline = time.monotonic() + 20
        while self.link.server is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def close(self) -> None:
        self.side.close()
        self.worker.close()

    def ask(self, request: str, prompt: list[int]) -> int:
        """Tokens that a blend reuses."""
        side, table = self.side, [list(range(1, 2 - (-len(prompt) // SIZE)))]
        side.on_new_request(RequestFacts(request, prompt, len(prompt), blend=CHOICE))
        while (found := side.matched_tokens(request, 0)[0]) is None:
            pass
        side.on_allocated(request, table, found)
        reused = 0
        plan = side.plan(StepFacts({}, lambda _: table, frozenset()))
        for load in plan.blend_loads:
            reused += self._blend(load)
        side.on_worker_results(WorkerReport({}), [load.request_id for load in plan.loads])
        plan = side.plan(StepFacts({request: (found, len(prompt) - found)}, lambda _: table, frozenset()))
        side.on_worker_results(WorkerReport(self._store(plan)), [])
        side.on_finished(request)
        return reused

    def _blend(self, load: BlendLoad) -> int:
        there = BlendLoaded(1, True, (True,) * len(load.segments))
        self.side.on_worker_results(WorkerReport({}, blend_loaded={load.id: there}), [])
        (step,) = self.side.plan(StepFacts({}, lambda _: [[]], frozenset())).blends
        reused = sum(min(each.end, load.end) - each.start for each in load.segments)
        result = BlendResult(reused, 0, load.end - reused)
        self.side.on_worker_results(WorkerReport({}, blend_results={step.id: result}), [load.request_id])
        return reused

    def _store(self, plan: StepPlan) -> dict[int, int]:
        for each in plan.stores:
            key, worker = self._key(each), self.worker
            if worker.worker.prepare_store(key, worker.instance_id).context.slots:
                assert worker.worker.commit_store(key, worker.instance_id)
        return {each.id: 1 for each in plan.stores}

    @staticmethod
    def _key(store: Transfer) -> EngineKey:
        name = PLACE.key_name(store.variant, approximate=store.approximate)
        tokens = msgspec.Raw(store.tokens)
        return EngineKey(name, 1, 0, tokens, store.start, store.end, store.request_id, "", None, 1)


def prompt(number: int, order: list[list[int]]) -> list[int]:
    own = 1_000_000 + 1000 * number
    tokens = [own + at for at in range(HEADING)]
    for document in order:
        tokens += [END, *document]
    return [*tokens, END, own + 900]


@pytest.mark.slow
def test_documents_that_were_evicted_are_stored_by_the_prompt_that_computes_them(server: ServerProcess) -> None:
    chance = random.Random(21)
    known = [[1000 * (number + 1) + at for at in range(TOKENS)] for number in range(DOCUMENTS)]
    engine = Engine(server.port, (END,))
    try:
        for number, document in enumerate(known):
            engine.ask(f"alone {number}", [*document, END, 5])
        found = [
            engine.ask(f"order {number}", prompt(number, chance.sample(known, OF_A_PROMPT))) for number in range(ORDERS)
        ]
    finally:
        engine.close()
    reuse = [sum(found[at : at + WINDOW]) / (WINDOW * OF_A_PROMPT * TOKENS) for at in range(0, ORDERS, WINDOW)]
    print(reuse)
    assert reuse[0] > 0.9
    assert reuse[-1] > 0.95 * reuse[0]
    assert server.status()["l1"]["leases"] == 0
