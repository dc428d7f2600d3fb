"""The scheduler side, case by case."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from dataclasses import replace

import msgspec
import pytest

from engines.vllm.tests.scheduler_rig import CHUNK, PROMPT, SETTINGS, TABLE, Rig
from lmcache_client import NoAnswerError
from lmcache_core import parse_model_name
from lmcache_vllm.metadata import StepPlan, WorkerReport
from lmcache_vllm.placement import Placement
from lmcache_vllm.server_port import Question
from lmcache_vllm.transfer_task import TransferTask


def test_a_miss_is_computed_and_stored() -> None:
    rig = Rig()
    rig.side.on_new_request(PROMPT)
    assert rig.side.matched_tokens("r", 0) == (0, False)
    rig.side.on_allocated("r", TABLE, 0)
    first, second = rig.step(0, 20), rig.step(20, 12)
    assert [(store.start, store.end, store.block_ids) for store in (*first.stores, *second.stores)] == [
        (0, 16, ((1, 2, 3, 4),)),
        (16, 32, ((5, 6, 7, 8),)),
    ]
    assert msgspec.msgpack.decode(first.stores[0].tokens) == PROMPT.tokens[:16]
    assert rig.step(32, 1).stores == ()


def test_a_hit_is_loaded_up_to_the_last_token() -> None:
    rig = Rig()
    rig.store(PROMPT, 32)
    rig.side.on_new_request(PROMPT)
    assert rig.side.matched_tokens("r", 0) == (31, True)
    rig.side.on_allocated("r", TABLE, 31)
    (load,) = rig.step().loads
    assert (load.start, load.end, load.block_ids) == (0, 32, (tuple(range(1, 9)),))
    rig.side.on_worker_results(WorkerReport({load.id: 1}), ["r"])
    rig.side.on_allocated("r", TABLE, 0)
    assert rig.step(31, 1).stores == ()


def test_what_vllm_has_is_not_loaded() -> None:
    rig = Rig()
    rig.store(PROMPT, 24)
    (load,) = rig.load(PROMPT, computed=12).loads
    assert (load.start, load.end, load.block_ids) == (8, 24, ((0, 4, 5, 6),))
    assert rig.server.holds["r"] == {1, 2}


def test_what_vllm_declines_is_released() -> None:
    rig = Rig()
    rig.store(PROMPT, 24)
    rig.side.on_new_request(PROMPT)
    assert rig.side.matched_tokens("r", 8) == (16, True)
    rig.side.on_allocated("r", TABLE, 0)
    assert rig.server.holds["r"] == set()
    assert rig.step().loads == ()


def test_the_key() -> None:
    rig = Rig()
    rig.load(replace(PROMPT, cache_salt="tenant", configs={"lmcache.tag": 1}))
    (key,) = rig.server.keys
    assert (key.model_name, key.world_size, key.worker_id, key.start, key.end) == ("model", 2, None, 0, 32)
    assert (key.request_id, key.cache_salt, key.request_configs, key.num_kv_readers) == (
        "r",
        "tenant",
        {"lmcache.tag": 1},
        3,
    )


def test_a_lookup_is_waited_for_and_then_abandoned() -> None:
    rig = Rig(at_once=False)
    rig.side.on_new_request(PROMPT)
    rig.now = 5.0  # waits in vLLM's queue
    assert rig.side.matched_tokens("r", 0) == (None, False)
    rig.now = 5.2
    assert rig.side.matched_tokens("r", 0) == (None, False)
    rig.now = 5.4
    assert rig.side.matched_tokens("r", 0) == (0, False)
    assert rig.server.ended == ["r"]
    assert rig.side.take_counts()["failed_lookups:timeout"] == 1
    assert rig.side.matched_tokens("r", 0) == (0, False)
    assert len(rig.server.keys) == 1


def test_a_server_that_has_taken_the_lookup_is_given_the_time_to_load() -> None:
    rig = Rig(replace(SETTINGS, prefetch_timeout_seconds=4.0), at_once=False)
    rig.server.accepts = True
    rig.side.on_new_request(PROMPT)
    for rig.now in (0.0, 0.5, 3.9):
        assert rig.side.matched_tokens("r", 0) == (None, False)
    rig.now = 4.0
    assert rig.side.matched_tokens("r", 0) == (0, False)
    assert rig.side.take_counts()["failed_lookups:timeout"] == 1


@pytest.mark.parametrize("answer", [None, -1, 5, NoAnswerError("lost")])
def test_an_answer_that_is_none(answer: int | Exception | None) -> None:
    rig = Rig(at_once=False)
    rig.side.on_new_request(PROMPT)
    future: Future[int | None] = rig.server.pending.pop("r").future
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
    assert rig.side.matched_tokens("r", 0) == (0, False)
    assert rig.server.ended == ["r"]
    assert rig.side.take_counts()["failed_lookups:error"] == 1


def test_an_old_miss_is_asked_again() -> None:
    rig = Rig()
    rig.side.on_new_request(PROMPT)
    rig.now = 0.5
    assert rig.side.matched_tokens("r", 0) == (0, False)
    rig.store(PROMPT, 16)
    rig.now = 2.0
    assert rig.side.matched_tokens("r", 0) == (16, True)


def test_short_and_unfit_requests_are_not_looked_up() -> None:
    rig = Rig()
    for number, facts in enumerate(
        [
            replace(PROMPT, tokens=[1] * 7, prompt_tokens=7),
            replace(PROMPT, skip_reason="prompt_embeds"),
            replace(PROMPT, looks_up=False),
        ]
    ):
        rig.side.on_new_request(replace(facts, request_id=f"r{number}"))
        assert rig.side.matched_tokens(f"r{number}", 0) == (0, False)
    assert rig.server.keys == []
    assert rig.side.take_counts() == {"skipped_requests:prompt_embeds": 1}


def test_early_lookups_are_bounded() -> None:
    rig = Rig(replace(SETTINGS, eager_lookups=2))
    for number in range(4):
        rig.side.on_new_request(replace(PROMPT, request_id=f"r{number}"))
    assert [key.request_id for key in rig.server.keys] == ["r0", "r1"]
    rig.side.on_allocated("r0", TABLE, 0)
    rig.side.on_new_request(replace(PROMPT, request_id="r4"))
    assert [key.request_id for key in rig.server.keys] == ["r0", "r1", "r4"]
    rig.side.matched_tokens("r2", 0)
    assert rig.server.keys[-1].request_id == "r2"


def test_roles() -> None:
    consumer, producer = Rig(stores=False), Rig(loads=False)
    for rig in (consumer, producer):
        rig.store(PROMPT, 8)
    assert consumer.load(PROMPT).loads
    assert consumer.step(8, 24).stores == ()
    assert producer.load(PROMPT).loads == ()
    assert producer.step(0, 32).stores


def test_a_load_that_failed_is_not_tried_again() -> None:
    rig = Rig()
    rig.store(PROMPT, 24)
    (load,) = rig.load(PROMPT).loads
    rig.side.on_worker_results(WorkerReport({load.id: 1}, frozenset({"r"})), ["r"])
    assert rig.side.matched_tokens("r", 0) == (0, False)
    rig.side.on_allocated("r", TABLE, 0)
    assert rig.step(0, 32).stores[0].start == 0


def test_a_preempted_request_is_looked_up_again() -> None:
    rig = Rig()
    rig.load(PROMPT)
    (store,) = rig.step(0, 32).stores
    plan = rig.step(preempted=frozenset({"r"}))
    assert plan.fence == {store.id}
    rig.store(PROMPT, 32)
    assert rig.side.matched_tokens("r", 0) == (31, True)
    rig.side.on_worker_results(WorkerReport({store.id: 1}), [])
    assert not rig.side.on_finished("r")


def test_blocks_are_kept_until_every_worker_is_done() -> None:
    rig = Rig(workers=2)
    rig.load(PROMPT)
    (store,) = rig.step(0, 32).stores
    rig.side.on_worker_results(WorkerReport({store.id: 1}), [])
    assert rig.side.on_finished("r")
    assert rig.step().finishing == ("r",)
    assert rig.step().finishing == ()

    rig.load(replace(PROMPT, request_id="s"))
    (store,) = rig.step(0, 32, request="s").stores
    rig.side.on_worker_results(WorkerReport({store.id: 1}).aggregate(WorkerReport({store.id: 1})), [])
    assert not rig.side.on_finished("s")


def test_a_load_keeps_the_chunk_size_that_it_was_found_with() -> None:
    """The server may go, or be another one, between the answer and the plan."""
    for chunk_tokens in (None, 4 * CHUNK):
        rig = Rig()
        rig.store(PROMPT, 24)
        rig.side.on_new_request(PROMPT)
        assert rig.side.matched_tokens("r", 0) == (24, True)
        rig.side.on_allocated("r", TABLE, 24)
        rig.server.go()
        if chunk_tokens:
            rig.server.come(chunk_tokens)
        (load,) = rig.step().loads
        assert (load.start, load.end, load.chunk_tokens) == (0, 24, CHUNK)


def test_a_step_waits_once_for_all_of_its_lookups() -> None:
    waited: list[float] = []

    class Slow(Future[int | None]):
        def result(self, timeout: float | None = None) -> int | None:
            assert timeout is not None
            waited.append(timeout)
            rig.now += timeout
            raise TimeoutError

    rig = Rig(replace(SETTINGS, eager_lookups=0), at_once=False, patience_seconds=0.002)
    rig.server.look_up = lambda *_: Question(Future(), Slow())  # type: ignore[method-assign]
    for step in (1, 2):
        for number in range(50):
            name = f"{step}.{number}"
            rig.side.on_new_request(replace(PROMPT, request_id=name))
            assert rig.side.matched_tokens(name, 0) == (None, False)
        assert sum(waited) == pytest.approx(0.002 * step)
        rig.step()


def test_what_an_aborted_request_loads_stays_held() -> None:
    rig = Rig()
    rig.store(PROMPT, 24)
    rig.load(PROMPT)
    assert not rig.side.on_finished("r")
    assert rig.server.ended == []
    rig.side.on_worker_results(None, ["r"])
    assert rig.server.ended == ["r"]


def test_decode_is_stored_where_it_is_wanted() -> None:
    for saves, stored in ((False, []), (True, [(32, 40)])):
        rig = Rig(replace(SETTINGS, save_decode=saves))
        rig.load(PROMPT)
        rig.step(0, 32)
        grown = [*PROMPT.tokens, *range(9)]
        facts = replace(PROMPT, request_id="g", tokens=grown)
        rig.load(facts)
        rig.step(0, 32, request="g")
        assert [(store.start, store.end) for store in rig.step(32, 8, request="g").stores] == stored


def test_a_request_says_how_much_is_stored() -> None:
    rig = Rig()
    rig.load(replace(PROMPT, configs={"lmcache.max_offload_tokens": 17}))
    assert [store.end for store in rig.step(0, 32).stores] == [16]


def test_an_absent_server_costs_nothing() -> None:
    rig = Rig()
    rig.server.go()
    assert rig.load(PROMPT) == StepPlan(idle=True)
    assert rig.step(0, 16) == StepPlan()
    rig.server.come()
    assert [(store.start, store.end) for store in rig.step(16, 16).stores] == [(0, 32)]
    assert rig.side.take_counts()["lost_servers"] == 1


def test_a_new_server_gets_the_prompt_from_its_start() -> None:
    rig = Rig()
    rig.load(PROMPT)
    rig.step(0, 16)
    rig.server.go()
    rig.server.come(2 * CHUNK)
    assert [(store.start, store.end) for store in rig.step(16, 16).stores] == [(0, 32)]


def test_chunks_that_end_within_a_block(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.server.come(10)
    with caplog.at_level(logging.ERROR):
        rig.load(PROMPT)
        rig.step(0, 32)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "not a multiple of vLLM's blocks of 4" in caplog.text
    assert rig.server.keys == []


def test_an_adapter_is_part_of_the_name_of_lookups_and_stores() -> None:
    rig = Rig()
    rig.load(PROMPT)
    base = rig.step(0, 32).stores
    rig.load(replace(PROMPT, request_id="a", adapter="content"))
    adapted = rig.step(0, 32, "a").stores
    asked, asked_adapted = (key.model_name for key in rig.server.keys)
    assert (asked, [store.variant for store in base]) == ("model", [""])
    assert parse_model_name(asked_adapted) == ("model", "", adapted[0].variant)
    assert TransferTask(adapted[0]).key(Placement("model", 2, 0)).model_name == asked_adapted
    assert adapted[0].tokens == base[0].tokens


def test_the_cache_is_dropped_and_the_end_reported() -> None:
    rig = Rig()
    assert rig.side.reset_cache()
    rig.load(PROMPT)
    rig.side.close()
    assert (rig.server.cleared, rig.server.ended, rig.server.closed) == (1, ["r"], True)
