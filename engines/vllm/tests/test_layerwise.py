"""Loads and stores inside of a step, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from demo.server_process import ServerProcess
from engines.vllm.tests.scheduler_rig import PROMPT, SETTINGS, TABLE
from engines.vllm.tests.scheduler_rig import Rig as SchedulerRig
from engines.vllm.tests.test_worker_transfers import TOKENS
from engines.vllm.tests.worker_kit import (
    Paged,
    Rig,
    fused_hnd,
    fused_nhd,
    latent,
    rig,
    separate_planes,
    transfer,
)
from lmcache_vllm.metadata import StepPlan, Transfer, WorkerReport
from lmcache_vllm.settings import Settings
from lmcache_vllm.transfer_pages import ChunkPages

pytestmark = pytest.mark.usefixtures("nothing_stays_held")

BLOCKS = [[*range(1, 9)]]
LAYERWISE = replace(SETTINGS, layerwise=True)


def order(first: int = 0, request: str = "r") -> Transfer:
    return transfer([first + token for token in TOKENS], BLOCKS, request=request)


def layers_of(paged: Paged) -> list[str]:
    return list(paged.tensors)


def computing(worker: Rig, at_layer: Callable[[str], None] = lambda name: None) -> None:
    worker.computes, worker.at_layer = layers_of(worker.paged), at_layer


def stored(worker: Rig, one: Transfer) -> bool:
    return worker.until(lambda: one.id in worker.over and worker.counts.get("stores", 0) > 0)


@pytest.mark.parametrize("pages", [fused_hnd, fused_nhd, separate_planes, latent])
def test_each_layer_is_there_before_its_attention_and_stored_after(
    server: ServerProcess, pages: Callable[[], Paged]
) -> None:
    """The model writes a layer when it comes to it; what was there before is in no chunk."""
    paged, first = pages(), 1_000 * ([fused_hnd, fused_nhd, separate_planes, latent].index(pages) + 1)
    truth = {name: array.copy() for name, array in paged.pages.items()}
    with rig(server.port, paged) as worker:
        paged.wipe()

        def write(name: str) -> None:
            paged.pages[name][...] = truth[name]

        computing(worker, write)
        one = order(first)
        worker.step(layer_stores=(one,))
        assert stored(worker, one)
        paged.wipe()

        def check(name: str) -> None:
            assert (paged.pages[name][BLOCKS[0]] == truth[name][BLOCKS[0]]).all(), name

        computing(worker, check)
        again = order(first, "r2")
        worker.step(layer_loads=(again,))
        assert worker.over[again.id] == 1, "with the step that it belongs to"
        assert (worker.received, worker.failed_blocks) == ([], set())
        worker.load(order(first, "r3"))
        assert worker.received == ["r3"], "and in the other way"


def test_no_chunk_is_visible_before_all_of_its_layers(server: ServerProcess) -> None:
    paged = fused_hnd("float32")
    seen: list[int] = []
    with rig(server.port, paged) as worker, rig(server.port, fused_hnd("float32")) as other:
        one = order(10_000)

        def look(name: str) -> None:
            other.load(order(10_000, f"look {name}"))
            seen.append(int(other.counts.get("loads", 0)))

        computing(worker, look)
        worker.step(layer_stores=(one,))
        worker.computes = ()
        assert stored(worker, one)
        assert seen == [0] * len(layers_of(paged))
        other.load(order(10_000, "now"))
        assert other.counts["loads"] == 1


def test_a_load_that_fails_is_reported_with_its_step(server: ServerProcess) -> None:
    with rig(server.port, fused_hnd("float32")) as worker:
        computing(worker)
        one = order(20_000)
        worker.step(layer_loads=(one,))
        assert worker.failed_blocks == set(BLOCKS[0])
        assert worker.over[one.id] == 1
        assert worker.counts["failed_loads:missing"] == 1
        assert worker.received == []


def test_nothing_of_a_step_whose_load_failed_is_stored(server: ServerProcess) -> None:
    paged = fused_hnd("float32")
    with rig(server.port, paged) as worker:
        computing(worker)
        one = order(25_000)
        worker.step(layer_loads=(order(26_000, "r2"),), layer_stores=(one,))
        assert worker.until(lambda: one.id in worker.over)
        assert worker.counts["failed_stores:cancelled"] == 1
        worker.load(order(25_000, "r3"))
        assert worker.counts["failed_loads:missing"] == 2


def test_a_layer_that_cannot_be_copied_fails_the_whole_load(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rig(server.port, fused_hnd("float32")) as worker:
        worker.store(order(30_000))
        scatter = ChunkPages.scatter

        def broken(self: ChunkPages, tables: Any, chunks: Any, addresses: Any, layer: int | None = None) -> int:
            if layer == 1:
                raise OSError("gone")
            return scatter(self, tables, chunks, addresses, layer)

        monkeypatch.setattr(ChunkPages, "scatter", broken)
        computing(worker)
        worker.step(layer_loads=(order(30_000, "r2"),))
        assert worker.failed_blocks == set(BLOCKS[0])
        assert worker.counts["failed_loads:copy"] == 1


def test_a_model_that_does_not_wait_is_not_believed(server: ServerProcess) -> None:
    """As in a graph of whole steps, which calls nothing between two layers."""
    with rig(server.port, fused_hnd("float32")) as worker:
        worker.store(order(40_000))
        worker.step(layer_loads=(order(40_000, "r2"),))
        assert worker.failed_blocks == set(BLOCKS[0])
        assert worker.counts["failed_loads:not_waited"] == 1


def test_without_a_server_nothing_is_waited_for(server: ServerProcess) -> None:
    with rig(1, fused_hnd("float32"), timeout_seconds=0.2) as worker:
        computing(worker)
        worker.step(layer_loads=(order(50_000),), layer_stores=(order(51_000),))
        assert worker.failed_blocks == set(BLOCKS[0])
        assert worker.counts["failed_loads:no_server"] == 1
        assert worker.counts["failed_stores:no_server"] == 1


def test_a_frozen_server_costs_the_step_its_timeout_and_no_more(server: ServerProcess) -> None:
    with rig(server.port, fused_hnd("float32"), timeout_seconds=0.5, heartbeat_seconds=30.0) as worker:
        worker.store(order(60_000))
        computing(worker)
        server.pause()
        try:
            worker.step(layer_loads=(order(60_000, "r2"),), layer_stores=(order(61_000, "r3"),))
        finally:
            server.resume()
        assert worker.failed_blocks == set(BLOCKS[0])
        assert worker.counts["failed_loads:no_answer"] == 1
        assert worker.until(lambda: any(name.startswith("failed_stores") for name in worker.counts))


def test_an_engine_that_ends_within_a_step_leaves_no_thread(server: ServerProcess) -> None:
    paged = fused_hnd("float32")
    with rig(server.port, paged) as worker:
        plan = StepPlan(layer_stores=(order(70_000),))
        worker.side.on_step(plan)
        worker.side.start_loads(plan)
        worker.side.before_layer(layers_of(paged)[0])
        worker.side.after_layer(layers_of(paged)[0])
    assert np.all([not each.is_alive() for each in (worker.side._storing._thread,) if each])


# --- the scheduler


def test_a_hit_is_loaded_in_the_step_of_its_request_and_stored_behind_it_when_that_is_known() -> None:
    one = SchedulerRig(LAYERWISE, workers=2)
    one.store(PROMPT, 16)
    one.side.on_new_request(PROMPT)
    assert one.side.matched_tokens("r", 0) == (16, False)
    one.side.on_allocated("r", TABLE, 16)
    plan = one.step(16, 16)
    (load,) = plan.layer_loads
    assert (load.start, load.end, plan.loads, plan.layer_stores, plan.stores) == (0, 16, (), (), ())
    one.side.on_worker_results(WorkerReport({load.id: 1}), [])
    assert one.step(32, 1).layer_stores == (), "the other worker may have failed"
    one.side.on_worker_results(WorkerReport({load.id: 1}), [])
    (store,) = one.step(33, 1).layer_stores
    assert (store.start, store.end) == (16, 32)


def started(workers: int) -> tuple[SchedulerRig, StepPlan]:
    """A request of which half is loaded in the step that computes the other half."""
    one = SchedulerRig(LAYERWISE, workers=workers)
    one.store(PROMPT, 16)
    one.side.on_new_request(PROMPT)
    assert one.side.matched_tokens("r", 0) == (16, False)
    one.side.on_allocated("r", TABLE, 16)
    return one, one.step(16, 16)


def ranges(stores: Sequence[Transfer]) -> list[tuple[int, int]]:
    return [(store.start, store.end) for store in stores]


def test_a_worker_alone_stores_in_the_step_of_its_load_and_not_in_the_next() -> None:
    one, plan = started(workers=1)
    assert ranges(plan.layer_stores) == [(16, 32)]
    other = replace(PROMPT, request_id="other")
    one.side.on_new_request(other)
    one.side.matched_tokens("other", 0)
    one.side.on_allocated("other", TABLE, 0)
    assert one.step(16, 16, "other").layer_stores == (), "it may share blocks that were not loaded"


def test_what_was_computed_over_a_failed_load_is_stored_when_it_is_computed_again() -> None:
    one, plan = started(workers=1)
    one.side.on_worker_results(WorkerReport({plan.layer_loads[0].id: 1}, frozenset({"r"})), [])
    assert ranges(one.step(0, 32).layer_stores) == [(0, 32)]


def test_a_request_that_ends_with_its_load_is_stored_all_the_same() -> None:
    one, plan = started(workers=2)
    assert plan.layer_stores == ()
    assert one.side.on_finished("r", TABLE)
    one.side.on_worker_results(WorkerReport({plan.layer_loads[0].id: 2}), [])
    plan = one.step()
    assert (ranges(plan.stores), plan.finishing, plan.layer_stores) == ([(16, 32)], ("r",), ())


def test_a_request_that_was_aborted_with_its_load_is_not() -> None:
    one, _ = started(workers=2)
    assert not one.side.on_finished("r")
    assert one.step().stores == ()
    assert one.server.holds.get("r", set()) == set()


def test_models_with_windows_wait_beside_the_steps() -> None:
    one = SchedulerRig(LAYERWISE, window_tokens=64)
    one.store(PROMPT, 16)
    one.side.on_new_request(PROMPT)
    assert one.side.matched_tokens("r", 0) == (16, True)


def test_it_does_not_go_with_blending() -> None:
    with pytest.raises(ValueError, match=r"'lmcache\.layerwise' does not go with 'lmcache\.blend'"):
        Settings.of({"lmcache.layerwise": True, "lmcache.blend": "all"})
