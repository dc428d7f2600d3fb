"""Events of lookups, stores, retrieves and removals: each once, with the right fields."""

from __future__ import annotations

import pytest

from core.tests.storage.storage_harness import (
    CHUNKS,
    LOOKUP_TIMEOUT,
    PAYLOAD,
    SLOT,
    WORKER,
    StorageHarness,
    open_storage,
    space,
)
from lmcache_core.contracts.events import (
    CacheCleared,
    ChunksRetrieved,
    ChunksStored,
    L2LookupCompleted,
    LoadCompleted,
    LoadSubmitted,
    LookupAbandoned,
    LookupFinished,
    LookupHashes,
    LookupStarted,
    ObjectsAdded,
    ObjectsRead,
    ObjectsRemoved,
    RequestEnded,
    StoreCompleted,
    StoreRefused,
    StoreSubmitted,
)
from lmcache_core.contracts.storage import LookupRequest, PromptFacts, Shard
from lmcache_core.l1.leases import Lease
from lmcache_core.l1.salts import SaltLimits
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_core.storage.counters import total

OBJECT = HEADER_BYTES + PAYLOAD
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_lookup_has_an_event_when_it_starts_and_when_it_has_its_answer(harness: StorageHarness) -> None:
    harness.put(*CHUNKS[:3])
    prompt = PromptFacts("m", "", 1, 133, 8, TRACE)
    harness.clock.advance(5)
    harness.storage.lookup(LookupRequest(b"c", "r", (Shard((space(),)),), CHUNKS, 1, prompt))
    harness.clock.advance(2)
    harness.settle()
    assert harness.events.of(LookupStarted) == [LookupStarted("r", "m", "", 133, 8, TRACE)]
    assert harness.events.of(LookupHashes) == [LookupHashes("r", "m", "", 1, 133, b"".join(CHUNKS))]
    assert harness.events.of(LookupFinished) == [LookupFinished("r", "m", "", 8, 3, 0, 2.0, 133, TRACE)]


def test_a_lookup_that_can_find_nothing_says_whose_it_was(harness: StorageHarness) -> None:
    harness.storage.lookup(LookupRequest(b"c", "r", (), (), 1, PromptFacts("m", "tenant", 2, 40, 2, None, "no_worker")))
    assert harness.events.of(LookupFinished) == [LookupFinished("r", "m", "tenant", 2, 0, 0, 0.0, 40)]
    row = harness.storage.counters.snapshot()["m", "tenant"]
    assert (row.lookups, row.missed_chunks, row.missed_tokens, row.early_exits) == (1, 2, 40, {"no_worker": 1})


def test_a_prompt_that_is_said_to_be_shorter_than_its_hashes_counts_with_them(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.storage.lookup(LookupRequest(b"c", "r", (Shard((space(),)),), CHUNKS, 1, PromptFacts("m", "", 1, 3, 0)))
    row = harness.storage.counters.snapshot()["m", ""]
    assert (row.missed_chunks, row.missed_tokens) == (0, 0)
    assert (row.requested_chunks, row.requested_tokens, row.hit_l1_tokens) == (8, 128, 128)


def test_what_came_from_l2_is_distinguished(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS)
    harness.put(*CHUNKS[:2])
    harness.settle()
    harness.ask(*CHUNKS)
    harness.settle()
    (finished,) = harness.events.of(LookupFinished)
    assert (finished.hit_chunks, finished.l2_chunks) == (8, 6)
    row = harness.storage.counters.snapshot()["m", ""]
    assert (row.hit_l1_chunks, row.hit_l2_chunks, row.hit_l2_tokens) == (2, 6, 96)


def test_of_two_shards_a_chunk_counts_once_and_its_objects_each(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS[:3], into=space(0))
    harness.put(*CHUNKS[:3], into=space(1))
    harness.settle()
    harness.ask(*CHUNKS[:4], shards=(Shard((space(0),)), Shard((space(1),))))
    harness.settle()
    row = harness.storage.counters.snapshot()["m", ""]
    assert (row.requested_chunks, row.hit_l1_chunks, row.hit_l2_chunks, row.missed_chunks) == (4, 0, 3, 1)
    assert (row.hit_l1_objects, row.hit_l2_objects) == (3, 3)


@pytest.mark.parametrize("how", ["ended", "replaced", "late"])
def test_a_lookup_without_an_answer_is_abandoned_once(harness: StorageHarness, how: str) -> None:
    harness.put_in_l2(*CHUNKS)
    harness.ask(*CHUNKS)
    harness.clock.advance(1)
    if how == "ended":
        harness.storage.end_lookup(b"c", "r")
    elif how == "replaced":
        harness.ask(CHUNKS[0][::-1])
    else:
        harness.clock.advance(LOOKUP_TIMEOUT + 5)
        harness.storage.expire()
    harness.settle()
    harness.storage.end_lookup(b"c", "r")
    (abandoned,) = harness.events.of(LookupAbandoned)
    assert (abandoned.request_id, abandoned.model_name, abandoned.requested_chunks) == ("r", "m", 8)
    assert abandoned.seconds == (LOOKUP_TIMEOUT + 6 if how == "late" else 1)
    answered = [event.requested_chunks for event in harness.events.of(LookupFinished)]
    assert answered == ([1] if how == "replaced" else [])
    counted = total(harness.storage.counters.snapshot())
    assert (counted.lookups, counted.abandoned, counted.requested_chunks) == (len(answered), 1, sum(answered))


def test_an_answer_that_comes_while_its_lookup_ends_is_none(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.put_in_l2(*CHUNKS)
    harness.ask(*CHUNKS)
    harness.turn()
    lookup = harness.storage._lookups._table.find(b"c", "r")
    assert lookup is not None
    prefetch, end = lookup.prefetch, harness.cache.leases.end
    assert prefetch is not None

    def answer_meanwhile(lease: Lease) -> None:
        """As the prefetch thread might."""
        prefetch.on_done(prefetch.matched(), 0)
        end(lease)

    monkeypatch.setattr(harness.cache.leases, "end", answer_meanwhile)
    harness.storage.end_lookup(b"c", "r")
    monkeypatch.undo()
    harness.settle()
    counted = total(harness.storage.counters.snapshot())
    assert (counted.lookups, counted.abandoned) == (0, 1)
    assert (harness.events.of(LookupFinished), len(harness.events.of(LookupAbandoned))) == ([], 1)


def test_a_lookup_that_fails_after_its_request_ended_is_abandoned_once(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        harness.storage.end_lookup(b"c", "r")
        raise RuntimeError("no")

    monkeypatch.setattr("lmcache_core.storage.lookups.look_in_l1", fail)
    with pytest.raises(RuntimeError, match="no"):
        harness.ask(*CHUNKS)
    assert total(harness.storage.counters.snapshot()).abandoned == len(harness.events.of(LookupAbandoned)) == 1


def test_what_is_loaded_without_a_request_has_no_event(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS[:2])
    before = len(harness.events.of(ObjectsAdded))
    harness.ask(*CHUNKS[:2])
    harness.turn()
    harness.finish("lookup")
    harness.storage.end_lookup(b"c", "r")
    harness.settle()
    assert harness.events.of(LoadCompleted)[0].loaded == 2
    assert len(harness.events.of(ObjectsAdded)) == before
    assert not [event for event in harness.events.of(ObjectsRemoved) if event.reason == "passing"]


def test_a_request_that_ends_has_an_event(harness: StorageHarness) -> None:
    harness.storage.end_lookup(b"c", "r")
    assert harness.events.of(RequestEnded) == [RequestEnded("r")]


def test_a_request_that_its_engine_never_ends_ends_with_its_lookup(harness: StorageHarness) -> None:
    harness.put(*CHUNKS[:2])
    harness.ask(*CHUNKS[:2])
    harness.pass_time(299)
    assert not harness.events.of(RequestEnded)
    harness.pass_time(2)
    assert harness.events.of(RequestEnded) == [RequestEnded("r", incomplete=True)]
    harness.pass_time(1000)
    assert len(harness.events.of(RequestEnded)) == 1


def test_the_request_of_a_lookup_beyond_the_limit_ends(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmcache_core.storage.lookups.LOOKUPS_MAX", 1)
    for name in ("first", "second"):
        harness.storage.lookup(LookupRequest(b"c", name, (Shard((space(),)),), CHUNKS, 1))
    assert harness.events.of(RequestEnded) == [RequestEnded("first", incomplete=True)]


def test_a_request_that_looks_up_again_goes_on(harness: StorageHarness) -> None:
    harness.put(*CHUNKS[:2])
    harness.ask(*CHUNKS[:2])
    harness.pass_time(200)
    harness.ask(*CHUNKS[:2])
    harness.pass_time(200)
    assert not harness.events.of(RequestEnded)


def test_a_store_says_which_request_and_how_long_it_took(harness: StorageHarness) -> None:
    references, _ = harness.storage.reserve(WORKER, space(), CHUNKS[:2])
    harness.clock.advance(3)
    assert harness.storage.publish(references, 5, "r")
    (stored,) = harness.events.of(ChunksStored)
    assert stored == ChunksStored("m", "", space().space.kv_rank, 2, 2 * PAYLOAD, "r", 5, 3.0)
    (came,) = harness.events.of(ObjectsAdded)
    assert came == ObjectsAdded("m", "", space().space.kv_rank, OBJECT, "worker", "r", 5, b"".join(CHUNKS[:2]))


def test_a_retrieve_has_an_event_when_the_worker_has_read_it(harness: StorageHarness) -> None:
    harness.put(*CHUNKS[:4])
    harness.ask(*CHUNKS[:4])
    references = harness.storage.acquire(WORKER, "r", space(), CHUNKS[1:3], 1)
    assert references is not None
    rank = space().space.kv_rank
    assert harness.events.of(ObjectsRead) == [ObjectsRead("m", "", rank, "r", 1, b"".join(CHUNKS[1:3]))]
    assert not harness.events.of(ChunksRetrieved)
    harness.clock.advance(4)
    harness.storage.release(references)
    assert harness.events.of(ChunksRetrieved) == [ChunksRetrieved("m", "", rank, 2, 2 * PAYLOAD, "r", 1, 4.0)]


def test_what_a_dead_worker_was_given_was_not_read(harness: StorageHarness) -> None:
    harness.put(*CHUNKS[:2])
    references = harness.storage.acquire(WORKER, "r", space(), CHUNKS[:2], 0)
    assert references is not None
    harness.storage.end_worker(WORKER)
    harness.storage.release(references)
    assert not harness.events.of(ChunksRetrieved)
    assert total(harness.storage.counters.snapshot()).retrieved_chunks == 2


def test_a_retrieve_that_is_not_served_is_counted(harness: StorageHarness) -> None:
    harness.put(CHUNKS[0])
    assert harness.storage.acquire(WORKER, "r", space(), CHUNKS[:2], 0) is None
    assert total(harness.storage.counters.snapshot()).unread_chunks == {"missing": 2}


def test_a_commit_that_comes_too_late_stores_nothing(harness: StorageHarness) -> None:
    references, _ = harness.storage.reserve(WORKER, space(), CHUNKS[:2])
    harness.pass_time(700)
    assert not harness.storage.publish(references, 0, "r")
    counted = total(harness.storage.counters.snapshot())
    assert (counted.stores, counted.stores_late, counted.stored_chunks) == (0, 1, 0)
    assert not harness.events.of(ChunksStored)


def test_a_store_that_finds_no_room_is_refused_for_what_is_missing() -> None:
    with open_storage(StorageHarness(slots=3)) as harness:
        harness.put(CHUNKS[0])
        references, indexes = harness.storage.reserve(WORKER, space(), CHUNKS[:6])
        assert list(indexes) == [1, 2]
        assert harness.events.of(StoreRefused) == [StoreRefused("m", "", 3, "no_room")]
        row = harness.storage.counters.snapshot()["m", ""]
        assert (row.refused_chunks, row.refused_bytes) == ({"no_room": 3}, {"no_room": 3 * PAYLOAD})
        harness.storage.discard(references)


def test_a_store_beyond_its_quota_is_refused_as_such(harness: StorageHarness) -> None:
    harness.cache.salts.limit(SaltLimits({"": 2 * SLOT}), ("",))
    references, _ = harness.storage.reserve(WORKER, space(), CHUNKS[:5])
    assert len(references.slots) == 2
    assert harness.events.of(StoreRefused) == [StoreRefused("m", "", 3, "quota")]
    harness.storage.discard(references)


def test_a_store_while_the_server_stops_is_refused_for_what_is_not_there(harness: StorageHarness) -> None:
    harness.put(*CHUNKS[:2])
    harness.storage.take_no_stores()
    references, _ = harness.storage.reserve(WORKER, space(), CHUNKS[:5])
    assert not references.slots
    assert harness.events.of(StoreRefused) == [StoreRefused("m", "", 3, "stopping")]


def test_a_worker_with_too_much_open_is_refused(harness: StorageHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_core.storage.manager.WORKER_LEASES_MAX", 1)
    references, _ = harness.storage.reserve(WORKER, space(), CHUNKS[:1])
    harness.storage.reserve(WORKER, space(), CHUNKS[:3])
    assert harness.events.of(StoreRefused) == [StoreRefused("m", "", 2, "too_many_transfers")]
    assert harness.storage.acquire(WORKER, "r", space(), CHUNKS[:1], 0) is None
    assert total(harness.storage.counters.snapshot()).unread_chunks == {"too_many_transfers": 1}
    harness.storage.discard(references)


def test_clearing_has_an_event_with_what_was_removed(harness: StorageHarness) -> None:
    harness.put(*CHUNKS[:3])
    harness.settle()
    harness.ask(CHUNKS[0])
    assert harness.storage.clear(force=False) == 2
    assert harness.storage.clear(force=True) == 1
    assert harness.events.of(CacheCleared) == [CacheCleared(2, False), CacheCleared(1, True)]
    left = harness.events.of(ObjectsRemoved)
    assert [event.reason for event in left] == ["cleared", "cleared"]
    assert sorted(b"".join(event.chunk_hashes for event in left)) == sorted(b"".join(CHUNKS[:3]))
    harness.storage.end_lookup(b"c", "r")
    assert len(harness.events.of(ObjectsRemoved)) == 2, "what was cleared while it was held left once"


def test_passing_objects_leave_with_their_last_reader(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS[:2])
    harness.ask(*CHUNKS[:2])
    harness.settle()
    came = [event for event in harness.events.of(ObjectsAdded) if event.origin == "l2"]
    assert [(event.request_id, event.first_chunk, event.chunk_hashes) for event in came] == [
        ("r", 0, b"".join(CHUNKS[:2]))
    ]
    harness.storage.end_lookup(b"c", "r")
    left = [event for event in harness.events.of(ObjectsRemoved) if event.reason == "passing"]
    assert sorted(b"".join(event.chunk_hashes for event in left)) == sorted(b"".join(CHUNKS[:2]))


def test_evicted_objects_are_counted_by_salt_and_have_an_event(harness: StorageHarness) -> None:
    harness.put(*CHUNKS[:3])
    harness.settle()
    harness.cache.take_access_log()
    slots = [view.slot for view in harness.cache.contents.views(0, harness.cache.contents.slot_numbers)]
    harness.cache.evict(slots[:1], "quota")
    harness.cache.evict(slots[1:])
    assert harness.cache.evictions() == {("", "quota"): (1, SLOT), ("", "evicted"): (2, 2 * SLOT)}
    assert [event.reason for event in harness.events.of(ObjectsRemoved)] == ["quota", "evicted"]


def test_a_batch_says_how_long_it_waited_and_for_which_request(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.turn()
    harness.clock.advance(3)
    view = harness.store.views()["cue"]
    assert (view.counts.in_flight, view.counts.waiting, view.oldest_seconds) == (4, 4, 3.0)
    assert (view.counts.in_flight_bytes, view.counts.waiting_bytes) == (4 * OBJECT, 4 * OBJECT)
    harness.finish("store")
    harness.clock.advance(2)
    harness.settle()
    first, second = harness.events.of(StoreSubmitted)
    assert harness.events.of(StoreCompleted) == [
        StoreCompleted("cue", first.job, 4, 0, 3.0, 4 * OBJECT, 0.0, "r"),
        StoreCompleted("cue", second.job, 4, 0, 2.0, 4 * OBJECT, 3.0, "r"),
    ]
    view = harness.store.views()["cue"]
    assert (view.counts.stored_bytes, view.oldest_seconds, view.counts.adds_up) == (8 * OBJECT, 0.0, True)


def test_jobs_of_a_lookup_in_l2_have_events(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS[:2])
    harness.ask(*CHUNKS[:3])
    harness.turn()
    harness.clock.advance(1)
    harness.finish("lookup")
    harness.clock.advance(2)
    harness.settle()
    assert harness.events.of(L2LookupCompleted) == [L2LookupCompleted("cue", 1, "r", 3, 2, 1.0)]
    assert harness.events.of(LoadSubmitted) == [LoadSubmitted("cue", 1, "r", 2, 2 * OBJECT)]
    assert harness.events.of(LoadCompleted) == [LoadCompleted("cue", 1, "r", 2, 0, 2 * OBJECT, 2.0)]
    loads = harness.client.counters.snapshot().verbs["load"]
    assert (loads.jobs, loads.outcomes, loads.done_bytes, loads.seconds) == (1, {"done": 2}, 2 * OBJECT, 2.0)


def test_a_load_that_times_out_has_failed_once(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS[:2])
    harness.ask(*CHUNKS[:2])
    harness.turn()
    harness.finish("lookup")
    harness.pass_time(31)
    (completed,) = harness.events.of(LoadCompleted)
    assert (completed.loaded, completed.failed) == (0, 2)
    harness.settle()
    assert len(harness.events.of(LoadCompleted)) == 1
    assert harness.client.counters.snapshot().verbs["load"].outcomes == {"timed_out": 2}
