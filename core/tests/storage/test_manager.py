"""Single steps of the storage manager that the state machine only meets in passing."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from core.tests.storage.storage_harness import CHUNKS, PAYLOAD, WORKER, StorageHarness, space
from lmcache_core.contracts.events import ObjectRejected, PrefetchCompleted, StoresDropped
from lmcache_core.contracts.policies import AdapterFacts, StoredObject, StorePlan, StorePolicy
from lmcache_core.contracts.storage import LookupRequest, Shard
from lmcache_core.controllers.store_queue import StoreLimits
from lmcache_core.controllers.store_units import Batch
from lmcache_core.model.results import Outcome
from lmcache_core.storage.counters import total
from lmcache_core.storage.manager import WORKER_LEASES_MAX


def test_a_lookup_holds_the_prefix_and_nothing_behind_a_gap(harness: StorageHarness) -> None:
    harness.put(*CHUNKS[:2], *CHUNKS[3:])
    harness.settle()
    harness.adapter.objects.clear()
    harness.ask(*CHUNKS)
    harness.settle()
    assert harness.answer() == 2
    assert harness.cache.contents.state_counts().held == 2


def test_the_answer_is_given_once(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.ask(*CHUNKS)
    assert [harness.answer(), harness.answer(), harness.answer("unknown")] == [8, 0, 0]


def test_every_shard_must_have_it(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.put(*CHUNKS[:3], into=space(1))
    harness.settle()
    harness.adapter.objects.clear()
    harness.ask(*CHUNKS, shards=(Shard((space(),)), Shard((space(1),))))
    harness.settle()
    assert harness.answer() == 3
    assert harness.cache.contents.state_counts().held == 6


def test_one_of_several_layouts_is_enough_where_the_shard_is_unknown(harness: StorageHarness) -> None:
    other = space(layout=1)
    harness.put(*CHUNKS[:2], into=other)
    harness.settle()
    harness.storage.clear(force=False)
    harness.ask(*CHUNKS, shards=(Shard((space(), other)),))
    harness.settle()
    assert harness.answer() == 2
    assert harness.storage.acquire(WORKER, "r", space(), CHUNKS[:2], 0) is None, "the other layout's bytes"
    assert harness.storage.acquire(WORKER, "r", other, CHUNKS[:2], 0) is not None


def test_free_releases_what_the_engine_has_already(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    harness.ask(*CHUNKS)
    harness.storage.free_lookup(b"c", "r", 0, 5)
    assert harness.cache.contents.state_counts().held == 3
    harness.storage.free_lookup(b"c", "r", 0, 8)
    assert harness.cache.contents.state_counts().held == 0


def test_workers_take_over_what_the_lookup_held_one_read_each(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    harness.ask(*CHUNKS, readers=2)
    held = []
    for reader in (1, 2):
        references = harness.storage.acquire(reader, "r", space(), CHUNKS, 0)
        assert references is not None
        held.append(references)
    for references in held:
        harness.storage.release(references)
    assert harness.cache.contents.state_counts().held == 0, "the lookup still holds what both have read"


def test_a_worker_of_another_request_takes_nothing_over(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    harness.ask(*CHUNKS)
    references = harness.storage.acquire(WORKER, "other", space(), CHUNKS, 0)
    assert references is not None
    harness.storage.release(references)
    assert harness.cache.contents.state_counts().held == 8


def test_a_newer_lookup_replaces_the_older_one(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    harness.ask(*CHUNKS)
    harness.ask(*CHUNKS[:2])
    assert harness.answer() == 2
    assert harness.cache.contents.state_counts().held == 2


def test_a_scheduler_that_pings_keeps_its_lookups(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    harness.ask(*CHUNKS)
    for _ in range(5):
        harness.clock.advance(200)
        harness.storage.renew_lookups(b"c")
        harness.storage.expire()
    assert harness.cache.contents.state_counts().held == 8
    harness.clock.advance(301)
    harness.storage.expire()
    assert harness.cache.contents.state_counts().held == 0
    assert harness.storage.lookups_open == 0


def test_waiting_for_a_lookup_ends_with_its_answer(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    harness.storage.clear(force=False)
    harness.ask(*CHUNKS)
    given: list[int] = []

    def take(hits: int) -> bool:
        given.append(hits)
        return True

    harness.storage.on_lookup(b"c", "r", take)
    assert given == []
    harness.settle()
    assert given == [8]
    assert harness.answer() == 0, "it was given"


def test_an_answer_that_was_not_taken_can_still_be_asked_for(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    harness.storage.clear(force=False)
    harness.ask(*CHUNKS)
    harness.storage.on_lookup(b"c", "r", lambda hits: False)
    harness.settle()
    assert harness.answer() == 8


def test_two_lookups_share_one_load(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    harness.storage.clear(force=False)
    harness.ask(*CHUNKS, request="a")
    harness.ask(*CHUNKS, request="b")
    harness.turn()
    for job in list(harness.adapter.waiting):
        harness.adapter.finish(job)
    harness.turn()
    loads = [job for job in harness.adapter.waiting if job.verb == "load"]
    assert len(loads) == 1
    harness.settle()
    assert (harness.answer("a"), harness.answer("b")) == (8, 8)
    harness.storage.end_lookup(b"c", "a")
    harness.storage.end_lookup(b"c", "b")
    assert harness.cache.objects == 0, "prefetched objects are temporary"
    assert not any(harness.adapter.pins.values()), "both lookups had pinned them"


def test_a_failed_load_shortens_the_prefix_and_frees_what_lies_behind(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    key = next(key for key in harness.adapter.objects if harness.adapter.objects[key][4096:4128] == CHUNKS[3])
    damaged = bytearray(harness.adapter.objects[key])
    damaged[-1] ^= 1
    harness.adapter.objects[key] = bytes(damaged)
    harness.storage.clear(force=False)
    harness.ask(*CHUNKS)
    harness.settle()
    assert harness.answer() == 3
    assert harness.cache.contents.state_counts().held == 3
    assert [outcome for _, outcome in harness.adapter.rejected] == [Outcome.DAMAGED]
    (event,) = harness.events.of(ObjectRejected)
    assert "payload" in event.reason
    assert harness.events.of(PrefetchCompleted)[-1].failed_keys == 1


def test_what_the_disk_of_l1_loses_of_a_load_is_not_served(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    harness.storage.clear(force=False)

    def lost(slot: int) -> None:
        raise OSError(errno.EFAULT, "Bad address")

    harness.ask(*CHUNKS)
    monkeypatch.setattr(harness.cache, "fetch", lost)
    harness.settle()
    assert harness.answer() == 0
    assert harness.cache.objects == 0
    assert harness.cache.contents.state_counts().held == 0
    assert not harness.events.of(ObjectRejected), "the adapter's object is sound"


def test_an_object_under_anothers_name_is_foreign_and_not_served(harness: StorageHarness) -> None:
    harness.put(*CHUNKS[:2])
    harness.settle()
    first, second = harness.adapter.objects
    harness.adapter.objects[first], harness.adapter.objects[second] = (
        harness.adapter.objects[second],
        harness.adapter.objects[first],
    )
    harness.storage.clear(force=False)
    harness.ask(*CHUNKS[:2])
    harness.settle()
    assert harness.answer() == 0
    assert {outcome for _, outcome in harness.adapter.rejected} == {Outcome.FOREIGN}


def test_a_load_that_times_out_is_a_miss_and_its_slots_wait_for_the_adapter(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    harness.storage.clear(force=False)
    harness.ask(*CHUNKS)
    harness.turn()
    harness.adapter.finish(harness.adapter.waiting[0])
    harness.turn()
    (load,) = harness.adapter.waiting
    harness.clock.advance(31)
    harness.client.expire(harness.clock.monotonic())
    harness.turn()
    assert harness.answer() == 0
    assert harness.health() == (False, 8)
    harness.put(*CHUNKS)  # in other slots, although an adapter may still write those chunks
    harness.adapter.finish(load)
    harness.turn()
    assert harness.health() == (True, 0)
    harness.ask(*CHUNKS)
    assert harness.answer() == 8


def test_a_store_that_comes_too_late_is_not_published(harness: StorageHarness) -> None:
    references, _ = harness.storage.reserve(WORKER, space(), CHUNKS)
    harness.clock.advance(601)
    harness.storage.expire()
    assert harness.cache.contents.state_counts().quarantined == 8
    assert not harness.storage.publish(references, 0, "r")
    assert harness.cache.contents.state_counts().quarantined == 0
    harness.ask(*CHUNKS)
    assert harness.answer() == 0 or harness.answer() is None


def test_a_full_backlog_keeps_chunks_in_l1_only_and_says_so(harness: StorageHarness) -> None:
    hashes = [number.to_bytes(32, "big") for number in range(100, 140)]
    harness.put(*hashes)
    harness.settle()
    status = harness.store.status()["adapters"]
    assert isinstance(status, dict)
    account = status["cue"]
    assert (account["stored"], account["dropped"], account["admitted"]) == (16, 24, 40)
    assert len(harness.adapter.objects) == 16
    assert harness.cache.contents.state_counts().held == 0
    harness.put(*CHUNKS)
    harness.settle()
    assert len(harness.adapter.objects) == 24


def test_an_adapter_that_hangs_gets_nothing_more_and_nothing_is_lost_from_l1(harness: StorageHarness) -> None:
    harness.put(*CHUNKS[:2])
    harness.turn()
    harness.clock.advance(31)
    harness.client.expire(harness.clock.monotonic())
    harness.turn()
    harness.put(*CHUNKS[2:4])
    harness.turn()
    assert len(harness.adapter.waiting) == 1
    harness.ask(*CHUNKS[:4])
    assert harness.answer() == 4
    harness.storage.end_lookup(b"c", "r")
    harness.settle()
    assert harness.cache.contents.state_counts().held == 0


def test_a_worker_that_never_commits_is_stopped_at_a_limit(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    for _ in range(WORKER_LEASES_MAX):
        assert harness.storage.acquire(WORKER, "r", space(), CHUNKS[:1], 0)
    assert harness.storage.acquire(WORKER, "r", space(), CHUNKS[:1], 0) is None
    assert harness.storage.acquire(8, "r", space(), CHUNKS[:1], 0) is not None
    harness.storage.end_worker(WORKER)
    assert harness.storage.acquire(WORKER, "r", space(), CHUNKS[:1], 0)


def test_no_stores_are_taken_once_the_server_stops(harness: StorageHarness) -> None:
    harness.storage.take_no_stores()
    references, indexes = harness.storage.reserve(WORKER, space(), CHUNKS)
    assert (references.slots, list(indexes)) == ((), [])


@pytest.mark.parametrize("first", [b"a", b"b"])
def test_two_engines_with_one_request_id_keep_what_each_is_still_to_read(harness: StorageHarness, first: bytes) -> None:
    """Both may call a request "r" and hold the same chunks under it, and workers say only "r"."""
    harness.put_in_l2(*CHUNKS)
    for connection in (b"a", b"b"):
        harness.storage.lookup(LookupRequest(connection, "r", (Shard((space(),)),), CHUNKS, 1))
    harness.settle()
    for worker, connection in ((1, first), (2, b"b" if first == b"a" else b"a")):
        references = harness.storage.acquire(worker, "r", space(), CHUNKS, 0)
        assert references is not None, "the other request's end let it go"
        harness.storage.release(references)
        harness.storage.end_lookup(connection, "r")
    counts = harness.cache.contents.state_counts()
    assert (counts.held, counts.cached, counts.leases) == (0, 0, 0)


def test_a_request_id_that_others_use_for_other_chunks_is_not_a_hindrance(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    for connection, chunks in ((b"a", CHUNKS[:3]), (b"b", CHUNKS[3:])):
        harness.storage.lookup(LookupRequest(connection, "r", (Shard((space(),)),), chunks, 1))
    references = harness.storage.acquire(1, "r", space(), CHUNKS[3:], 0)
    assert references is not None
    harness.storage.release(references)
    assert harness.cache.contents.state_counts().held == 3


def test_a_store_plan_that_makes_no_sense_keeps_the_chunks_in_l1(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for targets in (((0,),), ((), (7,)), ((0, 0), (0,)), ((-1,), ())):
        plan = StorePlan(targets)
        monkeypatch.setattr(harness.store.guarded.policy, "plan", lambda objects, adapters, plan=plan: plan)
        harness.put(*[bytes([100 + len(harness.events.events)]) * 32, bytes([101 + len(harness.events.events)]) * 32])
        harness.settle()
        assert harness.store.drain(0)
        assert harness.cache.contents.state_counts().held == 0
    assert not harness.adapter.objects


def test_a_prefetch_for_a_request_that_is_over_loads_nothing(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    harness.storage.clear(force=False)
    harness.ask(*CHUNKS)
    harness.turn()
    harness.storage.end_lookup(b"c", "r")
    harness.adapter.finish(harness.adapter.waiting[0])
    harness.turn()
    assert not harness.adapter.waiting, "it is loaded without a request"
    assert not any(harness.adapter.pins.values())
    assert total(harness.storage.counters.snapshot()).hit_chunks == 0


def test_a_lookup_whose_end_was_lost_is_released_eventually(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    harness.ask(*CHUNKS)
    for _ in range(500):
        harness.clock.advance(10)
        harness.storage.renew_lookups(b"c")
        harness.storage.expire()
    assert harness.cache.contents.state_counts().held == 0
    assert harness.storage.lookups_open == 0


def test_an_overdue_lookup_does_not_take_the_next_of_its_name_with_it(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    harness.ask(*CHUNKS)
    old = harness.storage._lookups._table.find(b"c", "r")
    assert old is not None
    harness.clock.advance(301)
    harness.cache.leases.expire(harness.clock.monotonic())
    harness.ask(*CHUNKS)
    harness.storage._lookups._drop(old)
    assert harness.answer() == 8


def test_one_scheduler_cannot_hold_any_number_of_lookups(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmcache_core.storage.lookups.LOOKUPS_MAX", 10)
    harness.put(*CHUNKS)
    harness.settle()
    for number in range(50):
        harness.ask(*CHUNKS, request=str(number))
    assert harness.storage.lookups_open == 10
    assert (harness.answer("0"), harness.answer("49")) == (0, 8)


class OnSecondUse(StorePolicy):
    """Nothing when it is stored, everything when it is hit."""

    plans_hits = True

    def __init__(self) -> None:
        self.asked: list[tuple[int, bool]] = []

    def plan(self, objects: Sequence[StoredObject], adapters: Sequence[AdapterFacts]) -> StorePlan:
        self.asked.append((len(objects), objects[0].hit))
        return StorePlan(tuple((0,) if item.hit else () for item in objects))


@pytest.fixture
def second_use(harness: StorageHarness) -> OnSecondUse:
    policy = OnSecondUse()
    harness.store.guarded.take(policy)
    return policy


def test_a_policy_that_plans_hits_is_asked_again_when_they_come(
    harness: StorageHarness, second_use: OnSecondUse
) -> None:
    harness.put(*CHUNKS[:3])
    harness.settle()
    assert harness.adapter.objects == {}
    harness.ask(*CHUNKS)
    harness.settle()
    harness.settle()
    assert (harness.answer(), second_use.asked) == (3, [(3, False), (3, True)])
    assert len(harness.adapter.objects) == 3
    harness.storage.end_lookup(b"c", "r")
    harness.settle()
    assert harness.cache.contents.state_counts().held == 0
    assert harness.store.status()["backlog_bytes"] == 0


def test_what_is_on_its_way_is_not_planned_again(harness: StorageHarness, second_use: OnSecondUse) -> None:
    """Its header page would be written anew while the adapter reads it."""
    harness.put(*CHUNKS[:2])
    harness.turn()
    harness.ask(*CHUNKS[:2], request="a")
    harness.turn()
    (job,) = harness.adapter.waiting
    page = bytes(job.buffers[0].view[:4096])
    harness.clock.advance(1)
    harness.ask(*CHUNKS[:2], request="b")
    harness.turn()
    assert harness.adapter.waiting == [job]
    assert bytes(job.buffers[0].view[:4096]) == page
    harness.settle()
    for request in ("a", "b"):
        harness.storage.end_lookup(b"c", request)
    assert harness.cache.contents.state_counts().held == 0
    assert harness.store.status()["backlog_bytes"] == 0
    harness.ask(*CHUNKS[:2], request="c")
    harness.turn()
    assert len(harness.adapter.waiting) == 1, "when it has arrived, it is planned again"
    harness.settle()
    harness.storage.end_lookup(b"c", "c")


def test_hits_that_find_no_space_in_the_backlog_are_not_drops(harness: StorageHarness, second_use: OnSecondUse) -> None:
    harness.put(*CHUNKS[:2])
    harness.settle()
    harness.store.limit(StoreLimits(0))
    harness.turn()
    harness.ask(*CHUNKS[:2])
    harness.settle()
    assert (harness.answer(), len(second_use.asked)) == (2, 1)
    assert not [event for event in harness.events.events if isinstance(event, StoresDropped)]


def test_a_lookup_that_ends_while_its_hits_are_offered(
    harness: StorageHarness, second_use: OnSecondUse, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.put(*CHUNKS[:3])
    harness.settle()
    admit = harness.store.admit

    def admit_too_late(count: int, object_bytes: int, *, hit: bool = False) -> object:
        if hit:
            harness.storage.end_lookup(b"c", "r")
            harness.storage.clear(force=True)
            harness.put(*CHUNKS[5:8])  # other objects in the same slots
        return admit(count, object_bytes, hit=hit)

    monkeypatch.setattr(harness.store, "admit", admit_too_late)
    harness.ask(*CHUNKS[:3])
    harness.settle()
    harness.settle()
    assert second_use.asked == [(3, False), (3, False)], "what another object lies in is not offered as hit"
    assert harness.store.status()["backlog_bytes"] == 0


def test_a_lookup_is_answered_before_its_hits_are_offered(
    harness: StorageHarness, second_use: OnSecondUse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise RuntimeError("no")

    harness.put(*CHUNKS[:3])
    harness.settle()
    heard: list[int] = []

    def hear(chunks: int) -> bool:
        heard.append(chunks)
        return True

    harness.ask(*CHUNKS)
    harness.storage.on_lookup(b"c", "r", hear)
    monkeypatch.setattr(harness.store, "admit", fail)
    with pytest.raises(RuntimeError):
        harness.settle()
    assert heard == [3]


@pytest.mark.parametrize("fault", [SystemExit("no"), KeyError("no")])
def test_a_policy_that_raises_costs_nothing_but_the_plan(
    harness: StorageHarness, second_use: OnSecondUse, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    harness.put(*CHUNKS[:2])
    harness.turn()
    harness.ask(CHUNKS[0], request="a")
    harness.turn()
    (job,) = harness.adapter.waiting
    page = bytes(job.buffers[0].view[:4096])

    def fail(objects: object, adapters: object) -> StorePlan:
        raise fault

    monkeypatch.setattr(second_use, "plan", fail)
    harness.ask(*CHUNKS[:2], request="b")
    harness.turn()
    monkeypatch.undo()
    assert harness.store.status()["backlog_bytes"] == 2 * PAYLOAD, "what the adapter reads is still on its way"
    harness.clock.advance(1)
    harness.ask(CHUNKS[0], request="d")
    harness.turn()
    assert bytes(job.buffers[0].view[:4096]) == page
    harness.settle()
    for request in ("a", "b", "d"):
        harness.storage.end_lookup(b"c", request)
    assert (harness.store.status()["backlog_bytes"], harness.cache.contents.state_counts().held) == (0, 0)


@pytest.mark.parametrize("targets", [((0.0,),), ((True,),), ((0, 0),), ((7,),), ((),) * 2, None])
def test_a_plan_that_makes_no_sense_is_not_used(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch, targets: object
) -> None:
    monkeypatch.setattr(harness.store.guarded.policy, "plan", lambda objects, adapters: StorePlan(targets))  # type: ignore[arg-type]
    harness.put(CHUNKS[0])
    harness.turn()
    assert harness.adapter.waiting == []
    assert harness.store.status()["backlog_bytes"] == 0
    assert harness.cache.contents.state_counts().cached == 1


def test_a_hit_a_deletion_is_reported_before_its_store_does_not_displace_it(
    harness: StorageHarness, second_use: OnSecondUse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request can find an object between its publication and its offer."""
    offer = harness.store.offer
    late: list[Batch] = []

    def later(batch: Batch) -> None:
        if batch.hit:
            offer(batch)
        else:
            late.append(batch)

    monkeypatch.setattr(harness.store, "offer", later)
    harness.put(CHUNKS[0])
    harness.ask(CHUNKS[0], request="quick")
    harness.turn()
    (job,) = harness.adapter.waiting
    page = bytes(job.buffers[0].view[:4096])
    harness.clock.advance(1)
    offer(late[0])
    harness.turn()
    assert second_use.asked == [(1, True), (1, False)]
    assert bytes(job.buffers[0].view[:4096]) == page
    harness.settle()
    harness.storage.end_lookup(b"c", "quick")
    assert (harness.store.status()["backlog_bytes"], harness.cache.contents.state_counts().held) == (0, 0)
