"""Single steps of the storage manager that the state machine only meets in passing."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from core.tests.storage.house import CHUNKS, PAYLOAD, WORKER, House, space
from lmcache_core.contracts.events import ObjectRejected, PrefetchCompleted, StoresDropped
from lmcache_core.contracts.policies import AdapterFacts, StoredObject, StorePlan, StorePolicy
from lmcache_core.contracts.storage import LookupRequest, Shard
from lmcache_core.controllers.store_queue import StoreLimits
from lmcache_core.controllers.store_units import Batch
from lmcache_core.model.results import Outcome
from lmcache_core.storage.counters import total
from lmcache_core.storage.manager import WORKER_LEASES_MAX


def test_a_lookup_holds_the_prefix_and_nothing_behind_a_gap(house: House) -> None:
    house.put(*CHUNKS[:2], *CHUNKS[3:])
    house.settle()
    house.adapter.objects.clear()
    house.ask(*CHUNKS)
    house.settle()
    assert house.answer() == 2
    assert house.cache.contents.state_counts().held == 2


def test_the_answer_is_given_once(house: House) -> None:
    house.put(*CHUNKS)
    house.ask(*CHUNKS)
    assert [house.answer(), house.answer(), house.answer("unknown")] == [8, 0, 0]


def test_every_shard_must_have_it(house: House) -> None:
    house.put(*CHUNKS)
    house.put(*CHUNKS[:3], into=space(1))
    house.settle()
    house.adapter.objects.clear()
    house.ask(*CHUNKS, shards=(Shard((space(),)), Shard((space(1),))))
    house.settle()
    assert house.answer() == 3
    assert house.cache.contents.state_counts().held == 6


def test_one_of_several_layouts_is_enough_where_the_shard_is_unknown(house: House) -> None:
    other = space(layout=1)
    house.put(*CHUNKS[:2], into=other)
    house.settle()
    house.storage.clear(force=False)
    house.ask(*CHUNKS, shards=(Shard((space(), other)),))
    house.settle()
    assert house.answer() == 2
    assert house.storage.acquire(WORKER, "r", space(), CHUNKS[:2], 0) is None, "the other layout's bytes"
    assert house.storage.acquire(WORKER, "r", other, CHUNKS[:2], 0) is not None


def test_free_lets_go_of_what_the_engine_has_already(house: House) -> None:
    house.put(*CHUNKS)
    house.settle()
    house.ask(*CHUNKS)
    house.storage.free_lookup(b"c", "r", 0, 5)
    assert house.cache.contents.state_counts().held == 3
    house.storage.free_lookup(b"c", "r", 0, 8)
    assert house.cache.contents.state_counts().held == 0


def test_workers_take_over_what_the_lookup_held_one_read_each(house: House) -> None:
    house.put(*CHUNKS)
    house.settle()
    house.ask(*CHUNKS, readers=2)
    holds = []
    for reader in (1, 2):
        hold = house.storage.acquire(reader, "r", space(), CHUNKS, 0)
        assert hold is not None
        holds.append(hold)
    for hold in holds:
        house.storage.release(hold)
    assert house.cache.contents.state_counts().held == 0, "the lookup still holds what both have read"


def test_a_worker_of_another_request_takes_nothing_over(house: House) -> None:
    house.put(*CHUNKS)
    house.settle()
    house.ask(*CHUNKS)
    hold = house.storage.acquire(WORKER, "other", space(), CHUNKS, 0)
    assert hold is not None
    house.storage.release(hold)
    assert house.cache.contents.state_counts().held == 8


def test_a_newer_lookup_replaces_the_older_one(house: House) -> None:
    house.put(*CHUNKS)
    house.settle()
    house.ask(*CHUNKS)
    house.ask(*CHUNKS[:2])
    assert house.answer() == 2
    assert house.cache.contents.state_counts().held == 2


def test_a_scheduler_that_pings_keeps_its_lookups(house: House) -> None:
    house.put(*CHUNKS)
    house.settle()
    house.ask(*CHUNKS)
    for _ in range(5):
        house.clock.advance(200)
        house.storage.renew_lookups(b"c")
        house.storage.expire()
    assert house.cache.contents.state_counts().held == 8
    house.clock.advance(301)
    house.storage.expire()
    assert house.cache.contents.state_counts().held == 0
    assert house.storage.lookups_open == 0


def test_waiting_for_a_lookup_ends_with_its_answer(house: House) -> None:
    house.put(*CHUNKS)
    house.settle()
    house.storage.clear(force=False)
    house.ask(*CHUNKS)
    given: list[int] = []

    def take(hits: int) -> bool:
        given.append(hits)
        return True

    house.storage.on_lookup(b"c", "r", take)
    assert given == []
    house.settle()
    assert given == [8]
    assert house.answer() == 0, "it was given"


def test_an_answer_that_nobody_took_can_still_be_asked_for(house: House) -> None:
    house.put(*CHUNKS)
    house.settle()
    house.storage.clear(force=False)
    house.ask(*CHUNKS)
    house.storage.on_lookup(b"c", "r", lambda hits: False)
    house.settle()
    assert house.answer() == 8


def test_two_lookups_share_one_load(house: House) -> None:
    house.put(*CHUNKS)
    house.settle()
    house.storage.clear(force=False)
    house.ask(*CHUNKS, request="a")
    house.ask(*CHUNKS, request="b")
    house.turn()
    for job in list(house.adapter.waiting):
        house.adapter.finish(job)
    house.turn()
    loads = [job for job in house.adapter.waiting if job.verb == "load"]
    assert len(loads) == 1
    house.settle()
    assert (house.answer("a"), house.answer("b")) == (8, 8)
    house.storage.end_lookup(b"c", "a")
    house.storage.end_lookup(b"c", "b")
    assert house.cache.objects == 0, "prefetched objects are temporary"
    assert not any(house.adapter.pins.values()), "both lookups had pinned them"


def test_a_failed_load_shortens_the_prefix_and_frees_what_lies_behind(house: House) -> None:
    house.put(*CHUNKS)
    house.settle()
    key = next(key for key in house.adapter.objects if house.adapter.objects[key][4096:4128] == CHUNKS[3])
    damaged = bytearray(house.adapter.objects[key])
    damaged[-1] ^= 1
    house.adapter.objects[key] = bytes(damaged)
    house.storage.clear(force=False)
    house.ask(*CHUNKS)
    house.settle()
    assert house.answer() == 3
    assert house.cache.contents.state_counts().held == 3
    assert [outcome for _, outcome in house.adapter.rejected] == [Outcome.DAMAGED]
    (event,) = house.events.of(ObjectRejected)
    assert "payload" in event.reason
    assert house.events.of(PrefetchCompleted)[-1].failed_keys == 1


def test_what_the_disk_of_l1_loses_of_a_load_is_not_served(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.put(*CHUNKS)
    house.settle()
    house.storage.clear(force=False)

    def lost(slot: int) -> None:
        raise OSError(errno.EFAULT, "Bad address")

    house.ask(*CHUNKS)
    monkeypatch.setattr(house.cache, "fetch", lost)
    house.settle()
    assert house.answer() == 0
    assert house.cache.objects == 0
    assert house.cache.contents.state_counts().held == 0
    assert not house.events.of(ObjectRejected), "the adapter's object is sound"


def test_an_object_under_anothers_name_is_foreign_and_not_served(house: House) -> None:
    house.put(*CHUNKS[:2])
    house.settle()
    first, second = house.adapter.objects
    house.adapter.objects[first], house.adapter.objects[second] = (
        house.adapter.objects[second],
        house.adapter.objects[first],
    )
    house.storage.clear(force=False)
    house.ask(*CHUNKS[:2])
    house.settle()
    assert house.answer() == 0
    assert {outcome for _, outcome in house.adapter.rejected} == {Outcome.FOREIGN}


def test_a_load_that_times_out_is_a_miss_and_its_slots_wait_for_the_adapter(house: House) -> None:
    house.put(*CHUNKS)
    house.settle()
    house.storage.clear(force=False)
    house.ask(*CHUNKS)
    house.turn()
    house.adapter.finish(house.adapter.waiting[0])
    house.turn()
    (load,) = house.adapter.waiting
    house.clock.advance(31)
    house.client.expire(house.clock.monotonic())
    house.turn()
    assert house.answer() == 0
    assert house.health() == (False, 8)
    house.put(*CHUNKS)  # in other slots, although an adapter may still write those chunks
    house.adapter.finish(load)
    house.turn()
    assert house.health() == (True, 0)
    house.ask(*CHUNKS)
    assert house.answer() == 8


def test_a_store_that_comes_too_late_is_not_published(house: House) -> None:
    hold, _ = house.storage.reserve(WORKER, space(), CHUNKS)
    house.clock.advance(601)
    house.storage.expire()
    assert house.cache.contents.state_counts().quarantined == 8
    assert not house.storage.publish(hold, 0, "r")
    assert house.cache.contents.state_counts().quarantined == 0
    house.ask(*CHUNKS)
    assert house.answer() == 0 or house.answer() is None


def test_a_full_backlog_keeps_chunks_in_l1_only_and_says_so(house: House) -> None:
    hashes = [number.to_bytes(32, "big") for number in range(100, 140)]
    house.put(*hashes)
    house.settle()
    status = house.store.status()["adapters"]
    assert isinstance(status, dict)
    account = status["cue"]
    assert (account["stored"], account["dropped"], account["admitted"]) == (16, 24, 40)
    assert len(house.adapter.objects) == 16
    assert house.cache.contents.state_counts().held == 0
    house.put(*CHUNKS)
    house.settle()
    assert len(house.adapter.objects) == 24


def test_an_adapter_that_hangs_gets_nothing_more_and_nothing_is_lost_from_l1(house: House) -> None:
    house.put(*CHUNKS[:2])
    house.turn()
    house.clock.advance(31)
    house.client.expire(house.clock.monotonic())
    house.turn()
    house.put(*CHUNKS[2:4])
    house.turn()
    assert len(house.adapter.waiting) == 1
    house.ask(*CHUNKS[:4])
    assert house.answer() == 4
    house.storage.end_lookup(b"c", "r")
    house.settle()
    assert house.cache.contents.state_counts().held == 0


def test_a_worker_that_never_commits_is_stopped_at_a_limit(house: House) -> None:
    house.put(*CHUNKS)
    house.settle()
    for _ in range(WORKER_LEASES_MAX):
        assert house.storage.acquire(WORKER, "r", space(), CHUNKS[:1], 0)
    assert house.storage.acquire(WORKER, "r", space(), CHUNKS[:1], 0) is None
    assert house.storage.acquire(8, "r", space(), CHUNKS[:1], 0) is not None
    house.storage.end_worker(WORKER)
    assert house.storage.acquire(WORKER, "r", space(), CHUNKS[:1], 0)


def test_no_stores_are_taken_once_the_server_stops(house: House) -> None:
    house.storage.take_no_stores()
    hold, indexes = house.storage.reserve(WORKER, space(), CHUNKS)
    assert (hold.slots, list(indexes)) == ((), [])


@pytest.mark.parametrize("first", [b"a", b"b"])
def test_two_engines_with_one_request_id_keep_what_each_is_still_to_read(house: House, first: bytes) -> None:
    """Both may call a request "r" and hold the same chunks under it, and workers say only "r"."""
    house.put_in_l2(*CHUNKS)
    for connection in (b"a", b"b"):
        house.storage.lookup(LookupRequest(connection, "r", (Shard((space(),)),), CHUNKS, 1))
    house.settle()
    for worker, connection in ((1, first), (2, b"b" if first == b"a" else b"a")):
        hold = house.storage.acquire(worker, "r", space(), CHUNKS, 0)
        assert hold is not None, "the other request's end let it go"
        house.storage.release(hold)
        house.storage.end_lookup(connection, "r")
    census = house.cache.contents.state_counts()
    assert (census.held, census.cached, census.leases) == (0, 0, 0)


def test_a_request_id_that_others_use_for_other_chunks_is_no_hindrance(house: House) -> None:
    house.put(*CHUNKS)
    house.settle()
    for connection, chunks in ((b"a", CHUNKS[:3]), (b"b", CHUNKS[3:])):
        house.storage.lookup(LookupRequest(connection, "r", (Shard((space(),)),), chunks, 1))
    hold = house.storage.acquire(1, "r", space(), CHUNKS[3:], 0)
    assert hold is not None
    house.storage.release(hold)
    assert house.cache.contents.state_counts().held == 3


def test_a_store_plan_that_makes_no_sense_keeps_the_chunks_in_l1(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    for targets in (((0,),), ((), (7,)), ((0, 0), (0,)), ((-1,), ())):
        plan = StorePlan(targets)
        monkeypatch.setattr(house.store.guarded.policy, "plan", lambda objects, adapters, plan=plan: plan)
        house.put(*[bytes([100 + len(house.events.events)]) * 32, bytes([101 + len(house.events.events)]) * 32])
        house.settle()
        assert house.store.drain(0)
        assert house.cache.contents.state_counts().held == 0
    assert not house.adapter.objects


def test_a_prefetch_for_a_request_that_is_over_loads_nothing(house: House) -> None:
    house.put(*CHUNKS)
    house.settle()
    house.storage.clear(force=False)
    house.ask(*CHUNKS)
    house.turn()
    house.storage.end_lookup(b"c", "r")
    house.adapter.finish(house.adapter.waiting[0])
    house.turn()
    assert not house.adapter.waiting, "it is loaded for nobody"
    assert not any(house.adapter.pins.values())
    assert total(house.storage.counters.snapshot()).hit_chunks == 0


def test_a_lookup_whose_end_was_lost_is_let_go_some_day(house: House) -> None:
    house.put(*CHUNKS)
    house.settle()
    house.ask(*CHUNKS)
    for _ in range(500):
        house.clock.advance(10)
        house.storage.renew_lookups(b"c")
        house.storage.expire()
    assert house.cache.contents.state_counts().held == 0
    assert house.storage.lookups_open == 0


def test_an_overdue_lookup_does_not_take_the_next_of_its_name_with_it(house: House) -> None:
    house.put(*CHUNKS)
    house.settle()
    house.ask(*CHUNKS)
    old = house.storage._lookups._table.find(b"c", "r")
    assert old is not None
    house.clock.advance(301)
    house.cache.leases.expire(house.clock.monotonic())
    house.ask(*CHUNKS)
    house.storage._lookups._drop(old)
    assert house.answer() == 8


def test_one_scheduler_cannot_hold_any_number_of_lookups(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_core.storage.lookups.LOOKUPS_MAX", 10)
    house.put(*CHUNKS)
    house.settle()
    for number in range(50):
        house.ask(*CHUNKS, request=str(number))
    assert house.storage.lookups_open == 10
    assert (house.answer("0"), house.answer("49")) == (0, 8)


class OnSecondUse(StorePolicy):
    """Nothing when it is stored, everything when it is hit."""

    plans_hits = True

    def __init__(self) -> None:
        self.asked: list[tuple[int, bool]] = []

    def plan(self, objects: Sequence[StoredObject], adapters: Sequence[AdapterFacts]) -> StorePlan:
        self.asked.append((len(objects), objects[0].hit))
        return StorePlan(tuple((0,) if item.hit else () for item in objects))


@pytest.fixture
def second_use(house: House) -> OnSecondUse:
    policy = OnSecondUse()
    house.store.guarded.take(policy)
    return policy


def test_a_policy_that_plans_hits_is_asked_again_when_they_come(house: House, second_use: OnSecondUse) -> None:
    house.put(*CHUNKS[:3])
    house.settle()
    assert house.adapter.objects == {}
    house.ask(*CHUNKS)
    house.settle()
    house.settle()
    assert (house.answer(), second_use.asked) == (3, [(3, False), (3, True)])
    assert len(house.adapter.objects) == 3
    house.storage.end_lookup(b"c", "r")
    house.settle()
    assert house.cache.contents.state_counts().held == 0
    assert house.store.status()["backlog_bytes"] == 0


def test_what_is_on_its_way_is_not_planned_again(house: House, second_use: OnSecondUse) -> None:
    """Its header page would be written anew while the adapter reads it."""
    house.put(*CHUNKS[:2])
    house.turn()
    house.ask(*CHUNKS[:2], request="a")
    house.turn()
    (job,) = house.adapter.waiting
    page = bytes(job.buffers[0].view[:4096])
    house.clock.advance(1)
    house.ask(*CHUNKS[:2], request="b")
    house.turn()
    assert house.adapter.waiting == [job]
    assert bytes(job.buffers[0].view[:4096]) == page
    house.settle()
    for request in ("a", "b"):
        house.storage.end_lookup(b"c", request)
    assert house.cache.contents.state_counts().held == 0
    assert house.store.status()["backlog_bytes"] == 0
    house.ask(*CHUNKS[:2], request="c")
    house.turn()
    assert len(house.adapter.waiting) == 1, "when it has arrived, it is planned again"
    house.settle()
    house.storage.end_lookup(b"c", "c")


def test_hits_that_find_no_room_in_the_backlog_are_no_drops(house: House, second_use: OnSecondUse) -> None:
    house.put(*CHUNKS[:2])
    house.settle()
    house.store.limit(StoreLimits(0))
    house.turn()
    house.ask(*CHUNKS[:2])
    house.settle()
    assert (house.answer(), len(second_use.asked)) == (2, 1)
    assert not [event for event in house.events.events if isinstance(event, StoresDropped)]


def test_a_lookup_that_ends_while_its_hits_are_offered(
    house: House, second_use: OnSecondUse, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.put(*CHUNKS[:3])
    house.settle()
    admit = house.store.admit

    def admit_too_late(count: int, object_bytes: int, *, hit: bool = False) -> object:
        if hit:
            house.storage.end_lookup(b"c", "r")
            house.storage.clear(force=True)
            house.put(*CHUNKS[5:8])  # other objects in the same slots
        return admit(count, object_bytes, hit=hit)

    monkeypatch.setattr(house.store, "admit", admit_too_late)
    house.ask(*CHUNKS[:3])
    house.settle()
    house.settle()
    assert second_use.asked == [(3, False), (3, False)], "what another object lies in is not offered as hit"
    assert house.store.status()["backlog_bytes"] == 0


def test_a_lookup_is_answered_before_its_hits_are_offered(
    house: House, second_use: OnSecondUse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise RuntimeError("no")

    house.put(*CHUNKS[:3])
    house.settle()
    heard: list[int] = []

    def hear(chunks: int) -> bool:
        heard.append(chunks)
        return True

    house.ask(*CHUNKS)
    house.storage.on_lookup(b"c", "r", hear)
    monkeypatch.setattr(house.store, "admit", fail)
    with pytest.raises(RuntimeError):
        house.settle()
    assert heard == [3]


@pytest.mark.parametrize("fault", [SystemExit("no"), KeyError("no")])
def test_a_policy_that_raises_costs_nothing_but_the_plan(
    house: House, second_use: OnSecondUse, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    house.put(*CHUNKS[:2])
    house.turn()
    house.ask(CHUNKS[0], request="a")
    house.turn()
    (job,) = house.adapter.waiting
    page = bytes(job.buffers[0].view[:4096])

    def fail(objects: object, adapters: object) -> StorePlan:
        raise fault

    monkeypatch.setattr(second_use, "plan", fail)
    house.ask(*CHUNKS[:2], request="b")
    house.turn()
    monkeypatch.undo()
    assert house.store.status()["backlog_bytes"] == 2 * PAYLOAD, "what the adapter reads is still on its way"
    house.clock.advance(1)
    house.ask(CHUNKS[0], request="d")
    house.turn()
    assert bytes(job.buffers[0].view[:4096]) == page
    house.settle()
    for request in ("a", "b", "d"):
        house.storage.end_lookup(b"c", request)
    assert (house.store.status()["backlog_bytes"], house.cache.contents.state_counts().held) == (0, 0)


@pytest.mark.parametrize("targets", [((0.0,),), ((True,),), ((0, 0),), ((7,),), ((),) * 2, None])
def test_a_plan_that_makes_no_sense_is_no_plan(house: House, monkeypatch: pytest.MonkeyPatch, targets: object) -> None:
    monkeypatch.setattr(house.store.guarded.policy, "plan", lambda objects, adapters: StorePlan(targets))  # type: ignore[arg-type]
    house.put(CHUNKS[0])
    house.turn()
    assert house.adapter.waiting == []
    assert house.store.status()["backlog_bytes"] == 0
    assert house.cache.contents.state_counts().cached == 1


def test_a_hit_that_is_told_before_its_store_does_not_displace_it(
    house: House, second_use: OnSecondUse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request can find an object between its publication and its offer."""
    offer = house.store.offer
    late: list[Batch] = []

    def later(batch: Batch) -> None:
        if batch.hit:
            offer(batch)
        else:
            late.append(batch)

    monkeypatch.setattr(house.store, "offer", later)
    house.put(CHUNKS[0])
    house.ask(CHUNKS[0], request="quick")
    house.turn()
    (job,) = house.adapter.waiting
    page = bytes(job.buffers[0].view[:4096])
    house.clock.advance(1)
    offer(late[0])
    house.turn()
    assert second_use.asked == [(1, True), (1, False)]
    assert bytes(job.buffers[0].view[:4096]) == page
    house.settle()
    house.storage.end_lookup(b"c", "quick")
    assert (house.store.status()["backlog_bytes"], house.cache.contents.state_counts().held) == (0, 0)
