"""Which stores a step waits for: those that read blocks which vLLM gives out again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.vllm.tests.scheduler_rig import PROMPT, Rig
from lmcache_vllm.metadata import WorkerReport


def test_with_windows_a_store_goes_on_beside_the_next_steps() -> None:
    """The blocks of a long prompt's first steps are still being copied when the next one begins."""
    rig = Rig(window_tokens=8)
    rig.load(PROMPT)
    (first,) = rig.step(0, 16, new_blocks=[(0, [[1, 2, 3, 4]])]).stores
    plan = rig.step(16, 16, new_blocks=[(0, [[5, 6, 7, 8]])])
    assert plan.fence == frozenset()
    assert [store.start for store in plan.stores] == [16]
    rig.side.on_worker_results(WorkerReport({first.id: 1}), [])
    assert rig.side.on_finished("r")  # the second one is not over


@pytest.mark.parametrize("is_over", [False, True])
def test_a_store_is_fenced_when_what_a_window_left_behind_is_given_out(is_over: bool) -> None:
    """vLLM frees blocks before and when a request is over, whether or not the others are kept."""
    rig = Rig(window_tokens=8)
    rig.load(PROMPT)
    (first,) = rig.step(0, 16).stores
    (second,) = rig.step(16, 16).stores
    if is_over:
        assert rig.side.on_finished("r")
    rig.side.on_new_request(replace(PROMPT, request_id="s"))
    shared = (8, [[7, 8, 2, 11]])  # the first two blocks are vLLM's own hit: they are not written
    plan = rig.step(8, 8, request="s", new_blocks=[shared])
    assert plan.fence == {first.id}
    assert plan.finishing == (("r",) if is_over else ())
    assert rig.step().fence == frozenset()
    rig.side.on_worker_results(WorkerReport({second.id: 1}), [])
    if not is_over:
        assert not rig.side.on_finished("r")


def test_a_store_is_fenced_when_a_load_gets_its_blocks() -> None:
    rig = Rig(window_tokens=8)
    rig.load(PROMPT)
    stores = [*rig.step(0, 16).stores, *rig.step(16, 16).stores]
    other = replace(PROMPT, request_id="s", tokens=list(range(32)))
    rig.store(other, 24)
    rig.side.on_new_request(other)
    assert rig.side.matched_tokens("s", 0) == (24, True)
    rig.side.on_allocated("s", [[0, 0, 0, 0, 3, 12]], 24)
    plan = rig.step()
    assert [load.request_id for load in plan.loads] == ["s"]
    assert plan.fence == {stores[0].id}


def test_without_windows_vllm_gives_out_each_block_once() -> None:
    rig = Rig()
    rig.load(PROMPT)
    rig.step(0, 16)
    assert rig.step(16, 16, new_blocks=[(0, [[1, 2, 3, 4]])]).fence == frozenset()


def test_a_request_that_is_aborted_after_it_was_preempted_is_fenced() -> None:
    """A reset of vLLM's cache preempts between two steps, so that an abort may come before the next plan."""
    rig = Rig()
    rig.load(PROMPT)
    (store,) = rig.step(0, 32).stores
    assert rig.side.on_finished("r")
    assert rig.step(preempted=frozenset({"r"})).fence == {store.id}


def test_a_store_is_fenced_when_another_connector_loads_into_its_blocks() -> None:
    """vLLM's MultiConnector: the request waits for that one, and is in no step meanwhile."""
    rig = Rig(window_tokens=8)
    rig.load(PROMPT)
    (first,) = rig.step(0, 16).stores
    rig.step(16, 16)
    rig.side.on_new_request(replace(PROMPT, request_id="s", tokens=list(range(32))))
    assert rig.side.matched_tokens("s", 0) == (0, False)
    assert rig.side.watches_blocks
    rig.side.on_allocated("s", [[0, 0, 0, 0, 3, 12]], 0)
    assert rig.step().fence == {first.id}
    assert rig.step().fence == frozenset()
