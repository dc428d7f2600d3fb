"""Lookups that go on in L2: where they load from, how far they get, and when they give in."""

from __future__ import annotations

import gc
import select
from collections.abc import Iterator, Sequence

import pytest

from core.tests.storage.storage_harness import (
    CHUNKS,
    LOOKUP_TIMEOUT,
    PAYLOAD,
    SLOT,
    WORKER,
    Retain,
    StorageHarness,
    nothing_is_left,
    open_storage,
    space,
)
from lmcache_core.builtin.lru import open_lru
from lmcache_core.contracts.events import PrefetchCompleted
from lmcache_core.contracts.policies import AdapterFacts, PrefetchPlan, PrefetchPolicy
from lmcache_core.contracts.storage import Shard
from lmcache_core.controllers import prefetch_plan
from lmcache_core.controllers.eviction import EvictionController
from lmcache_core.model.results import Bitmap, Outcome

BOTH = (Shard((space(),)), Shard((space(1),)))


@pytest.fixture
def pair() -> Iterator[StorageHarness]:
    with open_storage(StorageHarness(adapters=2)) as harness:
        yield harness


# --- several adapters


def test_each_chunk_comes_from_the_first_adapter_that_has_it_in_one_job_each(pair: StorageHarness) -> None:
    pair.put_in_l2(*CHUNKS[2:6], only=1)
    pair.put_in_l2(*CHUNKS[:4], only=0)
    pair.ask(*CHUNKS)
    pair.turn()
    pair.finish("lookup")
    first, second = (job for _, job in pair.jobs("load"))
    assert [key.chunk_hash for key in first.keys] == list(CHUNKS[:4])
    assert [key.chunk_hash for key in second.keys] == list(CHUNKS[4:6])
    pair.settle()
    assert pair.answer() == 6
    pair.storage.end_lookup(b"c", "r")
    assert nothing_is_left(pair)


@pytest.mark.parametrize("fault", ["missing", "failed", "damaged", "timed out", "raises", "kept"])
def test_what_one_adapter_cannot_load_is_tried_at_the_next(pair: StorageHarness, fault: str) -> None:
    pair.put_in_l2(*CHUNKS)
    if fault == "damaged":
        for name, stored in pair.adapter.objects.items():
            pair.adapter.objects[name] = stored[:-1] + bytes([stored[-1] ^ 1])
    if fault == "raises":
        pair.adapter.raises_at.add("load")
    pair.ask(*CHUNKS)
    pair.turn()
    pair.finish("lookup")
    if fault in ("missing", "failed", "timed out", "kept"):
        ((adapter, job),) = pair.jobs("load")
        if fault == "timed out":
            adapter.time_out(job)
        elif fault == "kept":
            adapter.finish_and_keep(job)
        else:
            adapter.fail(job, Outcome(fault))
    pair.settle()
    assert pair.answer() == 8
    assert pair.events.of(PrefetchCompleted)[-1].failed_keys == 8
    for adapter in pair.adapters:
        for job in list(adapter.keeping):
            adapter.release_buffers(job)
    pair.settle()
    pair.storage.end_lookup(b"c", "r")
    assert nothing_is_left(pair)


def test_a_chunk_that_the_policy_leaves_is_loaded_from_nowhere() -> None:
    class LeaveThird(PrefetchPolicy):
        def plan(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts]) -> PrefetchPlan:
            return PrefetchPlan(tuple(None if number == 2 else 0 for number in range(found[0].size)))

    with open_storage(StorageHarness(adapters=2, policy=LeaveThird())) as harness:
        harness.put_in_l2(*CHUNKS)
        harness.ask(*CHUNKS)
        harness.settle()
        assert harness.answer() == 2
        harness.storage.end_lookup(b"c", "r")
        assert nothing_is_left(harness)


@pytest.mark.parametrize("sources", [(True,) * 8, ("0",) * 8, (0,) * 7, (9,) * 8, (-1,) * 8, None])
def test_a_plan_that_makes_no_sense_loads_nothing(sources: object) -> None:
    class Nonsense(PrefetchPolicy):
        def plan(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts]) -> PrefetchPlan:
            return PrefetchPlan(sources)  # type: ignore[arg-type]

    with open_storage(StorageHarness(policy=Nonsense())) as harness:
        harness.put_in_l2(*CHUNKS)
        harness.ask(*CHUNKS)
        harness.settle()
        assert harness.answer() == 0
        assert nothing_is_left(harness)


def test_an_adapter_that_does_not_say_what_it_has_is_not_waited_for_to_the_end(pair: StorageHarness) -> None:
    pair.put_in_l2(*CHUNKS)
    pair.ask(*CHUNKS)
    pair.turn()
    (first, _), (slow, late) = pair.jobs("lookup")
    first.finish(first.waiting[0])
    pair.turn()
    assert not pair.jobs("load"), "the policy is to know of both"
    pair.pass_time(LOOKUP_TIMEOUT / 2)
    pair.finish("load")
    assert pair.answer() == 8
    slow.finish(late)
    pair.settle()
    pair.storage.end_lookup(b"c", "r")
    assert nothing_is_left(pair), "what the late answer has pinned is unpinned"


# --- order, and answers that come early


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two objects at a time, four under way."""
    monkeypatch.setattr(prefetch_plan, "SLICE_CELLS", 2)
    monkeypatch.setattr(prefetch_plan, "IN_FLIGHT_CELLS", 4)


@pytest.mark.usefixtures("slices")
def test_loads_go_out_in_slices_chunk_by_chunk_across_shards(harness: StorageHarness) -> None:
    for rank in (0, 1):
        harness.put_in_l2(*CHUNKS, into=space(rank))
    harness.ask(*CHUNKS, shards=BOTH)
    harness.turn()
    harness.finish("lookup")
    jobs = [job for _, job in harness.jobs("load")]
    assert [[CHUNKS.index(key.chunk_hash) for key in job.keys] for job in jobs] == [[0, 0], [1, 1]]
    assert jobs[0].keys[0].space != jobs[0].keys[1].space
    harness.adapter.finish(jobs[0])
    harness.turn()
    assert [CHUNKS.index(key.chunk_hash) for key in harness.jobs("load")[-1][1].keys] == [2, 2]
    harness.settle()
    assert harness.answer() == 8


@pytest.mark.usefixtures("slices")
def test_a_failure_early_on_cancels_what_lies_behind_and_the_answer_does_not_wait_for_it(
    harness: StorageHarness,
) -> None:
    harness.put_in_l2(*CHUNKS)
    harness.ask(*CHUNKS)
    harness.turn()
    harness.finish("lookup")
    (_, first), (_, second) = harness.jobs("load")
    harness.adapter.finish_partly(first, [True, False])
    harness.turn()
    assert harness.answer() == 1, "although chunks 2 and 3 are under way"
    assert [job for _, job in harness.jobs("load")] == [second], "4 to 7 are not asked for any more"
    assert harness.held() == 1 + 2
    harness.adapter.finish(second)
    harness.turn()
    assert (harness.held(), harness.cache.objects) == (1, 1), "what came without a request is gone"
    harness.storage.end_lookup(b"c", "r")
    assert nothing_is_left(harness)


@pytest.mark.usefixtures("slices")
def test_a_request_that_ends_stops_its_loads(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS)
    harness.ask(*CHUNKS)
    harness.turn()
    harness.finish("lookup")
    harness.storage.end_lookup(b"c", "r")
    harness.turn()
    assert harness.prefetch.status()["in_flight"] == 0, "its place is free at once"
    loads = [job for _, job in harness.jobs("load")]
    assert len(loads) == 2
    assert all(harness.adapter.pins[key.object_id] == 1 for job in loads for key in job.keys), "they are being read"
    harness.settle()
    assert (harness.cache.objects, harness.prefetch.status()["cancelled"]) == (0, 1)
    assert nothing_is_left(harness)


def test_a_request_that_ends_in_the_queue_is_never_asked_for() -> None:
    with open_storage(StorageHarness(max_in_flight=1)) as harness:
        harness.put_in_l2(*CHUNKS)
        for request in ("a", "b", "c"):
            harness.ask(*CHUNKS, request=request)
        harness.turn()
        harness.storage.end_lookup(b"c", "b")
        harness.finish("lookup")
        harness.finish("load")
        harness.finish("lookup")
        assert (harness.answer("a"), harness.answer("c")) == (8, 8)
        for request in ("a", "c"):
            harness.storage.end_lookup(b"c", request)
        assert nothing_is_left(harness)


def test_the_next_in_the_queue_begins_as_soon_as_there_is_a_place() -> None:
    with open_storage(StorageHarness(max_in_flight=1)) as harness:
        for request in ("a", "b", "c"):
            harness.ask(*CHUNKS, request=request)
        harness.turn()
        for _ in range(3):
            assert len(harness.jobs("lookup")) == 1
            harness.finish("lookup")
        assert [harness.answer(request) for request in ("a", "b", "c")] == [0, 0, 0]


# --- deadlines


def test_at_its_deadline_a_lookup_is_answered_with_what_is_there(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS)
    harness.put(*CHUNKS[:2])
    harness.ask(*CHUNKS)
    harness.turn()
    harness.finish("lookup")
    ((_, load),) = harness.jobs("load")
    harness.pass_time(LOOKUP_TIMEOUT - 1)
    assert harness.answer() is None
    harness.pass_time(1)
    assert harness.answer() == 2
    harness.adapter.finish(load)
    harness.settle()
    assert harness.held() == 2
    assert harness.prefetch.status()["timed_out"] == 1
    harness.storage.end_lookup(b"c", "r")
    assert nothing_is_left(harness)
    assert harness.cache.objects == 2, "what came late was for no request"


def test_what_comes_after_the_deadline_stays_if_the_policy_keeps_it() -> None:
    with open_storage(StorageHarness(policy=Retain())) as harness:
        harness.put_in_l2(*CHUNKS)
        harness.ask(*CHUNKS)
        harness.turn()
        harness.finish("lookup")
        harness.pass_time(LOOKUP_TIMEOUT)
        assert harness.answer() == 0
        harness.settle()
        assert (harness.held(), harness.cache.objects) == (0, 8)
        harness.ask(*CHUNKS, request="next")
        assert harness.answer("next") == 8


def test_a_deadline_is_for_those_in_the_queue_too() -> None:
    with open_storage(StorageHarness(max_in_flight=1)) as harness:
        harness.put_in_l2(*CHUNKS)
        harness.ask(*CHUNKS, request="a")
        harness.ask(*CHUNKS, request="b")
        harness.turn()
        harness.pass_time(LOOKUP_TIMEOUT)
        assert (harness.answer("a"), harness.answer("b")) == (0, 0)
        harness.settle()
        for request in ("a", "b"):
            harness.storage.end_lookup(b"c", request)
        assert nothing_is_left(harness)


def test_one_lookups_deadline_does_not_cost_another_what_both_wait_for(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS)
    harness.ask(*CHUNKS, request="a")
    harness.turn()
    harness.finish("lookup")
    harness.clock.advance(LOOKUP_TIMEOUT - 5)
    harness.ask(*CHUNKS, request="b")
    harness.turn()
    harness.finish("lookup")
    assert len(harness.jobs("load")) == 1
    harness.pass_time(5)
    assert (harness.answer("a"), harness.answer("b")) == (0, None)
    harness.finish("load")
    assert harness.answer("b") == 8
    for request in ("a", "b"):
        harness.storage.end_lookup(b"c", request)
    assert nothing_is_left(harness)


def test_the_controller_wakes_for_deadlines_and_for_adapters_that_are_slow(pair: StorageHarness) -> None:
    assert pair.prefetch._timeout_seconds() is None
    pair.put_in_l2(*CHUNKS)
    pair.ask(*CHUNKS)
    pair.turn()
    assert pair.prefetch._timeout_seconds() == LOOKUP_TIMEOUT
    pair.adapter.finish(pair.adapter.waiting[0])
    pair.turn()
    assert pair.prefetch._timeout_seconds() == LOOKUP_TIMEOUT / 2
    pair.settle()
    assert pair.prefetch._timeout_seconds() is None


def test_a_lookup_whose_answer_hangs_in_a_plugin_is_a_miss(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS)
    heard: list[int] = []

    def hear(hits: int) -> bool:
        heard.append(hits)
        return True

    harness.ask(*CHUNKS)
    harness.storage.on_lookup(b"c", "r", hear)
    harness.clock.advance(LOOKUP_TIMEOUT + 6)  # and the prefetch thread does not come back
    harness.storage.expire()
    assert (heard, harness.storage.lookups_open) == ([0], 0)
    harness.settle()
    assert nothing_is_left(harness)


# --- room in L1


def test_no_shard_takes_all_the_room() -> None:
    with open_storage(StorageHarness(slots=20)) as harness:
        for rank in (0, 1):
            harness.put_in_l2(*CHUNKS, into=space(rank))
        references, _ = harness.storage.reserve(WORKER, space(), [bytes([200 + n]) * 32 for n in range(14)])
        harness.ask(*CHUNKS, shards=BOTH)
        harness.settle()
        assert harness.answer() is None, "it waits a little for eviction"
        assert harness.cache.take_demand().total() == 10 * SLOT, "which is asked once for what is missing"
        harness.pass_time(prefetch_plan.SPACE_WAIT_SECONDS)
        assert harness.answer() == 3, "six slots for two shards"
        assert harness.held() == 14 + 6
        harness.storage.discard(references)
        harness.storage.end_lookup(b"c", "r")
        assert nothing_is_left(harness)


def test_loads_wait_a_little_until_eviction_has_made_room() -> None:
    with open_storage(StorageHarness(slots=20)) as harness:
        eviction = EvictionController(harness.cache, open_lru(None), 0.8, 0.2, harness.events)
        harness.put_in_l2(*CHUNKS)
        harness.put(*[bytes([200 + n]) * 32 for n in range(16)])
        harness.settle()
        harness.ask(*CHUNKS)
        harness.settle()
        assert harness.answer() is None
        assert harness.prefetch._timeout_seconds() == prefetch_plan.SPACE_RETRY_SECONDS
        eviction.cycle()
        harness.settle()
        assert harness.answer() == 8


def test_a_chunk_that_is_being_written_is_taken_when_it_is_there(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS)
    references, _ = harness.storage.reserve(WORKER, space(), CHUNKS[3:4])
    harness.ask(*CHUNKS)
    harness.settle()
    assert harness.answer() is None
    harness.storage.payload(references.slots[0])[:] = CHUNKS[3] * (PAYLOAD // 32)
    assert harness.storage.publish(references, 3, "other")
    harness.settle()
    assert harness.answer() == 8


def test_loads_beyond_the_bound_wait_until_readers_have_taken_over() -> None:
    with open_storage(StorageHarness(prefetch_slots=8)) as harness:
        harness.put_in_l2(*CHUNKS[:6])
        other = [bytes([100 + n]) * 32 for n in range(6)]
        harness.put_in_l2(*other)
        harness.ask(*CHUNKS[:6], request="a")
        harness.ask(*other, request="b")
        harness.settle()
        assert (harness.answer("a"), harness.answer("b")) == (6, None)
        assert harness.prefetch.status()["l1_bytes"] == 8 * SLOT, "what fits is loaded"
        references = harness.storage.acquire(WORKER, "a", space(), CHUNKS[:6], 0)
        harness.settle()
        assert harness.answer("b") == 6
        assert references is not None
        harness.storage.release(references)
        harness.storage.end_lookup(b"c", "b")
        harness.storage.end_lookup(b"c", "a")
        assert nothing_is_left(harness)


def test_a_reader_that_releases_while_the_thread_looks_wakes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_storage(StorageHarness(prefetch_slots=8)) as harness:
        other = [bytes([100 + n]) * 32 for n in range(6)]
        harness.put_in_l2(*CHUNKS[:6])
        harness.put_in_l2(*other)
        harness.ask(*CHUNKS[:6], request="a")
        harness.settle()
        harness.ask(*other, request="b")
        harness.turn()
        sweep = harness.prefetch._budget.sweep

        def sweep_too_early() -> None:
            sweep()
            harness.storage.free_lookup(b"c", "a", 0, 6)

        monkeypatch.setattr(harness.prefetch._budget, "sweep", sweep_too_early)
        harness.finish("lookup")
        monkeypatch.undo()
        poll = select.poll()
        poll.register(harness.prefetch._inbox, select.POLLIN)
        assert poll.poll(0), "the thread would sleep although there is room"
        harness.settle()
        assert harness.answer("b") == 6


def test_a_single_lookup_beyond_the_bound_is_loaded_whole() -> None:
    with open_storage(StorageHarness(prefetch_slots=5)) as harness:
        harness.put_in_l2(*CHUNKS)
        harness.ask(*CHUNKS)
        harness.settle()
        assert harness.answer() == 8


def test_one_beyond_the_bound_waits_until_nothing_is_beside_it() -> None:
    with open_storage(StorageHarness(prefetch_slots=5)) as harness:
        other = [bytes([100 + n]) * 32 for n in range(3)]
        harness.put_in_l2(*CHUNKS)
        harness.put_in_l2(*other)
        harness.ask(*other, request="b")
        harness.settle()
        harness.ask(*CHUNKS, request="a")
        harness.settle()
        assert (harness.answer("a"), harness.answer("b")) == (None, 3)
        harness.storage.free_lookup(b"c", "b", 0, 3)
        harness.settle()
        assert harness.answer("a") == 8


def test_those_behind_one_that_takes_all_of_the_bound_wait() -> None:
    with open_storage(StorageHarness(prefetch_slots=5)) as harness:
        other = [bytes([100 + n]) * 32 for n in range(3)]
        harness.put_in_l2(*CHUNKS)
        harness.put_in_l2(*other)
        harness.ask(*CHUNKS, request="a")
        harness.ask(*other, request="b")
        harness.settle()
        assert (harness.answer("a"), harness.answer("b")) == (8, None)
        harness.storage.free_lookup(b"c", "a", 0, 8)
        harness.settle()
        assert harness.answer("b") == 3


def test_an_answered_lookup_keeps_nothing_of_its_prefetch(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS)
    harness.ask(*CHUNKS)
    harness.settle()
    lookup = harness.storage._lookups._table.find(b"c", "r")
    assert lookup is not None
    assert lookup.prefetch is not None
    kept = lookup.prefetch
    assert [kept.rows, kept.wanted, kept.sources, kept.found, kept.pinned, kept.chunk_hashes] == [
        [],
        [],
        {},
        {},
        {},
        (),
    ]


def test_of_two_that_wait_for_each_other_the_younger_gives_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch_plan, "SLICE_CELLS", 2)
    monkeypatch.setattr(prefetch_plan, "IN_FLIGHT_CELLS", 2)
    with open_storage(StorageHarness(prefetch_slots=8)) as harness:
        other = [bytes([100 + n]) * 32 for n in range(8)]
        harness.put_in_l2(*CHUNKS)
        harness.put_in_l2(*other)
        harness.ask(*CHUNKS, request="a")
        harness.ask(*other, request="b")
        harness.settle()
        assert (harness.answer("a"), harness.answer("b")) == (None, 4)
        harness.storage.end_lookup(b"c", "b")
        harness.settle()
        assert harness.answer("a") == 8


def test_lookups_of_one_prompt_are_not_counted_twice() -> None:
    with open_storage(StorageHarness(prefetch_slots=8)) as harness:
        harness.put_in_l2(*CHUNKS)
        for request in ("a", "b"):
            harness.ask(*CHUNKS, request=request)
        harness.settle()
        assert (harness.answer("a"), harness.answer("b")) == (8, 8)


def test_what_two_lookups_reference_counts_until_both_have_released_it() -> None:
    with open_storage(StorageHarness(prefetch_slots=8)) as harness:
        harness.put_in_l2(*CHUNKS[:6])
        for request in ("a", "b"):
            harness.ask(*CHUNKS[:6], request=request)
        harness.settle()
        assert (harness.answer("a"), harness.answer("b")) == (6, 6)
        harness.storage.end_lookup(b"c", "a")
        harness.turn()
        assert harness.prefetch.status()["l1_bytes"] == 6 * SLOT
        harness.storage.end_lookup(b"c", "b")
        harness.turn()
        assert nothing_is_left(harness)


# --- again


def test_a_lookup_that_is_repeated_keeps_what_was_loaded_for_it(harness: StorageHarness) -> None:
    """Engines ask again for requests that they queue or preempt."""
    harness.put_in_l2(*CHUNKS)
    harness.ask(*CHUNKS)
    harness.settle()
    assert harness.answer() == 8
    harness.ask(*CHUNKS)
    assert harness.answer() == 8, "at once, and not from L2 again"
    assert harness.held() == 8
    harness.storage.end_lookup(b"c", "r")
    harness.turn()
    assert nothing_is_left(harness)


def test_a_lookup_that_cannot_be_looked_up_is_none(harness: StorageHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the one that it was to replace stay behind."""

    def fail(*arguments: object) -> list[int]:
        raise RuntimeError("injected")

    harness.put(*CHUNKS)
    harness.settle()
    harness.ask(*CHUNKS)
    monkeypatch.setattr(harness.cache.leases, "acquire", fail)
    with pytest.raises(RuntimeError, match="injected"):
        harness.ask(*CHUNKS)
    assert (harness.answer(), harness.storage.lookups_open, harness.cache.contents.state_counts().leases) == (0, 0, 0)


# --- what stays


@pytest.mark.parametrize("how", ["answered", "abandoned", "timed out"])
def test_a_lookup_that_has_ended_is_freed_without_the_garbage_collector(pair: StorageHarness, how: str) -> None:
    pair.put_in_l2(*CHUNKS)
    gc.collect()
    gc.disable()
    try:
        for number in range(3):
            request = f"r{number}"
            pair.ask(*CHUNKS, request=request)
            pair.turn()
            if how == "timed out":
                pair.pass_time(LOOKUP_TIMEOUT)
            if how != "abandoned":
                pair.settle()
                assert pair.answer(request) is not None
            pair.storage.end_lookup(b"c", request)
            pair.settle()
        assert nothing_is_left(pair)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = {type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith("lmcache_")}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not left
