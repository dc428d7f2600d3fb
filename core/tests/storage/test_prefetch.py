"""Lookups that go on in L2: where they load from, how far they get, and when they give in."""

from __future__ import annotations

import select
from collections.abc import Iterator, Sequence

import pytest

from core.tests.storage.house import (
    CHUNKS,
    LOOKUP_TIMEOUT,
    PAYLOAD,
    SLOT,
    WORKER,
    House,
    Retain,
    nothing_is_left,
    open_house,
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
def pair() -> Iterator[House]:
    with open_house(House(adapters=2)) as house:
        yield house


# --- several adapters


def test_each_chunk_comes_from_the_first_adapter_that_has_it_in_one_job_each(pair: House) -> None:
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
def test_what_one_adapter_cannot_load_is_tried_at_the_next(pair: House, fault: str) -> None:
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
            adapter.let_go(job)
    pair.settle()
    pair.storage.end_lookup(b"c", "r")
    assert nothing_is_left(pair)


def test_a_chunk_that_the_policy_leaves_is_loaded_from_nowhere() -> None:
    class LeaveThird(PrefetchPolicy):
        def plan(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts]) -> PrefetchPlan:
            return PrefetchPlan(tuple(None if number == 2 else 0 for number in range(found[0].size)))

    with open_house(House(adapters=2, policy=LeaveThird())) as house:
        house.put_in_l2(*CHUNKS)
        house.ask(*CHUNKS)
        house.settle()
        assert house.answer() == 2
        house.storage.end_lookup(b"c", "r")
        assert nothing_is_left(house)


@pytest.mark.parametrize("sources", [(True,) * 8, ("0",) * 8, (0,) * 7, (9,) * 8, (-1,) * 8, None])
def test_a_plan_that_makes_no_sense_loads_nothing(sources: object) -> None:
    class Nonsense(PrefetchPolicy):
        def plan(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts]) -> PrefetchPlan:
            return PrefetchPlan(sources)  # type: ignore[arg-type]

    with open_house(House(policy=Nonsense())) as house:
        house.put_in_l2(*CHUNKS)
        house.ask(*CHUNKS)
        house.settle()
        assert house.answer() == 0
        assert nothing_is_left(house)


def test_an_adapter_that_does_not_say_what_it_has_is_not_waited_for_to_the_end(pair: House) -> None:
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
def test_loads_go_out_in_slices_chunk_by_chunk_across_shards(house: House) -> None:
    for rank in (0, 1):
        house.put_in_l2(*CHUNKS, into=space(rank))
    house.ask(*CHUNKS, shards=BOTH)
    house.turn()
    house.finish("lookup")
    jobs = [job for _, job in house.jobs("load")]
    assert [[CHUNKS.index(key.chunk_hash) for key in job.keys] for job in jobs] == [[0, 0], [1, 1]]
    assert jobs[0].keys[0].space != jobs[0].keys[1].space
    house.adapter.finish(jobs[0])
    house.turn()
    assert [CHUNKS.index(key.chunk_hash) for key in house.jobs("load")[-1][1].keys] == [2, 2]
    house.settle()
    assert house.answer() == 8


@pytest.mark.usefixtures("slices")
def test_a_failure_early_on_cancels_what_lies_behind_and_the_answer_does_not_wait_for_it(house: House) -> None:
    house.put_in_l2(*CHUNKS)
    house.ask(*CHUNKS)
    house.turn()
    house.finish("lookup")
    (_, first), (_, second) = house.jobs("load")
    house.adapter.finish_partly(first, [True, False])
    house.turn()
    assert house.answer() == 1, "although chunks 2 and 3 are under way"
    assert [job for _, job in house.jobs("load")] == [second], "4 to 7 are not asked for any more"
    assert house.held() == 1 + 2
    house.adapter.finish(second)
    house.turn()
    assert (house.held(), house.cache.objects) == (1, 1), "what came for nobody is gone"
    house.storage.end_lookup(b"c", "r")
    assert nothing_is_left(house)


@pytest.mark.usefixtures("slices")
def test_a_request_that_ends_stops_its_loads(house: House) -> None:
    house.put_in_l2(*CHUNKS)
    house.ask(*CHUNKS)
    house.turn()
    house.finish("lookup")
    house.storage.end_lookup(b"c", "r")
    house.turn()
    assert house.prefetch.status()["in_flight"] == 0, "its place is free at once"
    loads = [job for _, job in house.jobs("load")]
    assert len(loads) == 2
    assert all(house.adapter.pins[key.object_id] == 1 for job in loads for key in job.keys), "they are being read"
    house.settle()
    assert (house.cache.objects, house.prefetch.status()["cancelled"]) == (0, 1)
    assert nothing_is_left(house)


def test_a_request_that_ends_in_the_queue_is_never_asked_for() -> None:
    with open_house(House(max_in_flight=1)) as house:
        house.put_in_l2(*CHUNKS)
        for request in ("a", "b", "c"):
            house.ask(*CHUNKS, request=request)
        house.turn()
        house.storage.end_lookup(b"c", "b")
        house.finish("lookup")
        house.finish("load")
        house.finish("lookup")
        assert (house.answer("a"), house.answer("c")) == (8, 8)
        for request in ("a", "c"):
            house.storage.end_lookup(b"c", request)
        assert nothing_is_left(house)


def test_the_next_in_the_queue_begins_as_soon_as_there_is_a_place() -> None:
    with open_house(House(max_in_flight=1)) as house:
        for request in ("a", "b", "c"):
            house.ask(*CHUNKS, request=request)
        house.turn()
        for _ in range(3):
            assert len(house.jobs("lookup")) == 1
            house.finish("lookup")
        assert [house.answer(request) for request in ("a", "b", "c")] == [0, 0, 0]


# --- deadlines


def test_at_its_deadline_a_lookup_is_answered_with_what_is_there(house: House) -> None:
    house.put_in_l2(*CHUNKS)
    house.put(*CHUNKS[:2])
    house.ask(*CHUNKS)
    house.turn()
    house.finish("lookup")
    ((_, load),) = house.jobs("load")
    house.pass_time(LOOKUP_TIMEOUT - 1)
    assert house.answer() is None
    house.pass_time(1)
    assert house.answer() == 2
    house.adapter.finish(load)
    house.settle()
    assert house.held() == 2
    assert house.prefetch.status()["timed_out"] == 1
    house.storage.end_lookup(b"c", "r")
    assert nothing_is_left(house)
    assert house.cache.objects == 2, "what came late was for nobody"


def test_what_comes_after_the_deadline_stays_if_the_policy_keeps_it() -> None:
    with open_house(House(policy=Retain())) as house:
        house.put_in_l2(*CHUNKS)
        house.ask(*CHUNKS)
        house.turn()
        house.finish("lookup")
        house.pass_time(LOOKUP_TIMEOUT)
        assert house.answer() == 0
        house.settle()
        assert (house.held(), house.cache.objects) == (0, 8)
        house.ask(*CHUNKS, request="next")
        assert house.answer("next") == 8


def test_a_deadline_is_for_those_in_the_queue_too() -> None:
    with open_house(House(max_in_flight=1)) as house:
        house.put_in_l2(*CHUNKS)
        house.ask(*CHUNKS, request="a")
        house.ask(*CHUNKS, request="b")
        house.turn()
        house.pass_time(LOOKUP_TIMEOUT)
        assert (house.answer("a"), house.answer("b")) == (0, 0)
        house.settle()
        for request in ("a", "b"):
            house.storage.end_lookup(b"c", request)
        assert nothing_is_left(house)


def test_one_lookups_deadline_does_not_cost_another_what_both_wait_for(house: House) -> None:
    house.put_in_l2(*CHUNKS)
    house.ask(*CHUNKS, request="a")
    house.turn()
    house.finish("lookup")
    house.clock.advance(LOOKUP_TIMEOUT - 5)
    house.ask(*CHUNKS, request="b")
    house.turn()
    house.finish("lookup")
    assert len(house.jobs("load")) == 1
    house.pass_time(5)
    assert (house.answer("a"), house.answer("b")) == (0, None)
    house.finish("load")
    assert house.answer("b") == 8
    for request in ("a", "b"):
        house.storage.end_lookup(b"c", request)
    assert nothing_is_left(house)


def test_the_controller_wakes_for_deadlines_and_for_adapters_that_are_slow(pair: House) -> None:
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


def test_a_lookup_whose_answer_hangs_in_a_plugin_is_a_miss(house: House) -> None:
    house.put_in_l2(*CHUNKS)
    heard: list[int] = []

    def hear(hits: int) -> bool:
        heard.append(hits)
        return True

    house.ask(*CHUNKS)
    house.storage.on_lookup(b"c", "r", hear)
    house.clock.advance(LOOKUP_TIMEOUT + 6)  # and the prefetch thread does not come back
    house.storage.expire()
    assert (heard, house.storage.lookups_open) == ([0], 0)
    house.settle()
    assert nothing_is_left(house)


# --- room in L1


def test_no_shard_takes_all_the_room() -> None:
    with open_house(House(slots=20)) as house:
        for rank in (0, 1):
            house.put_in_l2(*CHUNKS, into=space(rank))
        hold, _ = house.storage.reserve(WORKER, space(), [bytes([200 + n]) * 32 for n in range(14)])
        house.ask(*CHUNKS, shards=BOTH)
        house.settle()
        assert house.answer() is None, "it waits a little for eviction"
        assert house.cache.take_demand().total() == 10 * SLOT, "which is asked once for what is missing"
        house.pass_time(prefetch_plan.SPACE_WAIT_SECONDS)
        assert house.answer() == 3, "six slots for two shards"
        assert house.held() == 14 + 6
        house.storage.discard(hold)
        house.storage.end_lookup(b"c", "r")
        assert nothing_is_left(house)


def test_loads_wait_a_little_until_eviction_has_made_room() -> None:
    with open_house(House(slots=20)) as house:
        eviction = EvictionController(house.cache, open_lru(None), 0.8, 0.2, house.events)
        house.put_in_l2(*CHUNKS)
        house.put(*[bytes([200 + n]) * 32 for n in range(16)])
        house.settle()
        house.ask(*CHUNKS)
        house.settle()
        assert house.answer() is None
        assert house.prefetch._timeout_seconds() == prefetch_plan.SPACE_RETRY_SECONDS
        eviction.cycle()
        house.settle()
        assert house.answer() == 8


def test_a_chunk_that_somebody_is_writing_is_taken_when_it_is_there(house: House) -> None:
    house.put_in_l2(*CHUNKS)
    hold, _ = house.storage.reserve(WORKER, space(), CHUNKS[3:4])
    house.ask(*CHUNKS)
    house.settle()
    assert house.answer() is None
    house.storage.payload(hold.slots[0])[:] = CHUNKS[3] * (PAYLOAD // 32)
    assert house.storage.publish(hold, 3, "other")
    house.settle()
    assert house.answer() == 8


def test_loads_beyond_the_bound_wait_until_readers_have_taken_over() -> None:
    with open_house(House(prefetch_slots=8)) as house:
        house.put_in_l2(*CHUNKS[:6])
        other = [bytes([100 + n]) * 32 for n in range(6)]
        house.put_in_l2(*other)
        house.ask(*CHUNKS[:6], request="a")
        house.ask(*other, request="b")
        house.settle()
        assert (house.answer("a"), house.answer("b")) == (6, None)
        assert house.prefetch.status()["l1_bytes"] == 8 * SLOT, "what fits is loaded"
        hold = house.storage.acquire(WORKER, "a", space(), CHUNKS[:6], 0)
        house.settle()
        assert house.answer("b") == 6
        assert hold is not None
        house.storage.release(hold)
        house.storage.end_lookup(b"c", "b")
        house.storage.end_lookup(b"c", "a")
        assert nothing_is_left(house)


def test_a_reader_that_lets_go_while_the_thread_looks_wakes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_house(House(prefetch_slots=8)) as house:
        other = [bytes([100 + n]) * 32 for n in range(6)]
        house.put_in_l2(*CHUNKS[:6])
        house.put_in_l2(*other)
        house.ask(*CHUNKS[:6], request="a")
        house.settle()
        house.ask(*other, request="b")
        house.turn()
        sweep = house.prefetch._budget.sweep

        def sweep_too_early() -> None:
            sweep()
            house.storage.free_lookup(b"c", "a", 0, 6)

        monkeypatch.setattr(house.prefetch._budget, "sweep", sweep_too_early)
        house.finish("lookup")
        monkeypatch.undo()
        poll = select.poll()
        poll.register(house.prefetch._inbox, select.POLLIN)
        assert poll.poll(0), "the thread would sleep although there is room"
        house.settle()
        assert house.answer("b") == 6


def test_a_single_lookup_beyond_the_bound_is_shortened() -> None:
    with open_house(House(prefetch_slots=5)) as house:
        house.put_in_l2(*CHUNKS)
        house.ask(*CHUNKS)
        house.settle()
        assert house.answer() == 5


def test_one_that_takes_all_of_the_bound_gives_in_and_not_those_behind_it() -> None:
    with open_house(House(prefetch_slots=5)) as house:
        other = [bytes([100 + n]) * 32 for n in range(3)]
        house.put_in_l2(*CHUNKS)
        house.put_in_l2(*other)
        house.ask(*CHUNKS, request="a")
        house.ask(*other, request="b")
        house.settle()
        assert (house.answer("a"), house.answer("b")) == (5, None)
        house.storage.free_lookup(b"c", "a", 0, 5)
        house.settle()
        assert house.answer("b") == 3


def test_an_answered_lookup_keeps_nothing_of_its_prefetch(house: House) -> None:
    house.put_in_l2(*CHUNKS)
    house.ask(*CHUNKS)
    house.settle()
    lookup = house.storage._lookups._table.find(b"c", "r")
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
    with open_house(House(prefetch_slots=8)) as house:
        other = [bytes([100 + n]) * 32 for n in range(8)]
        house.put_in_l2(*CHUNKS)
        house.put_in_l2(*other)
        house.ask(*CHUNKS, request="a")
        house.ask(*other, request="b")
        house.settle()
        assert (house.answer("a"), house.answer("b")) == (None, 4)
        house.storage.end_lookup(b"c", "b")
        house.settle()
        assert house.answer("a") == 8


def test_lookups_of_one_prompt_are_not_counted_twice() -> None:
    with open_house(House(prefetch_slots=8)) as house:
        house.put_in_l2(*CHUNKS)
        for request in ("a", "b"):
            house.ask(*CHUNKS, request=request)
        house.settle()
        assert (house.answer("a"), house.answer("b")) == (8, 8)


def test_what_two_lookups_hold_counts_until_both_have_let_go() -> None:
    with open_house(House(prefetch_slots=8)) as house:
        house.put_in_l2(*CHUNKS[:6])
        for request in ("a", "b"):
            house.ask(*CHUNKS[:6], request=request)
        house.settle()
        assert (house.answer("a"), house.answer("b")) == (6, 6)
        house.storage.end_lookup(b"c", "a")
        house.turn()
        assert house.prefetch.status()["l1_bytes"] == 6 * SLOT
        house.storage.end_lookup(b"c", "b")
        house.turn()
        assert nothing_is_left(house)


# --- again


def test_a_lookup_that_is_repeated_keeps_what_was_loaded_for_it(house: House) -> None:
    """Engines ask again for requests that they queue or preempt."""
    house.put_in_l2(*CHUNKS)
    house.ask(*CHUNKS)
    house.settle()
    assert house.answer() == 8
    house.ask(*CHUNKS)
    assert house.answer() == 8, "at once, and not from L2 again"
    assert house.held() == 8
    house.storage.end_lookup(b"c", "r")
    house.turn()
    assert nothing_is_left(house)


def test_a_lookup_that_cannot_be_looked_up_is_none(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the one that it was to replace stay behind."""

    def fail(*arguments: object) -> list[int]:
        raise RuntimeError("injected")

    house.put(*CHUNKS)
    house.settle()
    house.ask(*CHUNKS)
    monkeypatch.setattr(house.cache.leases, "acquire", fail)
    with pytest.raises(RuntimeError, match="injected"):
        house.ask(*CHUNKS)
    assert (house.answer(), house.storage.lookups_open, house.cache.contents.state_counts().leases) == (0, 0, 0)
