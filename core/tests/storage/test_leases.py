"""Who may touch a slot, and until when (docs/internals/object-format.md, "Buffers"; docs/internals/architecture.md, "L1")."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest

from core.tests.storage.storage_harness import (
    CHUNKS,
    LOOKUP_TIMEOUT,
    PAYLOAD,
    WORKER,
    StorageHarness,
    open_storage,
    space,
)
from lmcache_core.contracts.events import LeasesExpired, LookupFinished
from lmcache_core.l1.index import Accessed
from lmcache_core.storage.counters import total

READ_TTL, WRITE_TTL = 300, 600


@pytest.fixture
def full() -> Iterator[StorageHarness]:
    """Every slot is in use: one that is given away too early would be noticed."""
    with open_storage(StorageHarness(slots=8)) as harness:
        yield harness


def free_slots(harness: StorageHarness) -> int:
    """How many chunks can be stored now."""
    references, _ = harness.storage.reserve(99, space(), [bytes([150 + n]) * 32 for n in range(16)])
    harness.storage.discard(references)
    return len(references.slots)


# --- what no worker has picked up


@pytest.mark.parametrize("how", ["end", "replace", "silence", "free"])
def test_what_no_worker_has_picked_up_is_released(harness: StorageHarness, how: str) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    harness.ask(*CHUNKS)
    assert harness.held() == 8
    match how:
        case "end":
            harness.storage.end_lookup(b"c", "r")
        case "replace":
            harness.ask(b"\xee" * 32)
            harness.settle()
        case "silence":
            harness.pass_time(READ_TTL + 1)
            assert harness.events.of(LeasesExpired)[-1] == LeasesExpired(8, 0)
        case _:
            harness.storage.free_lookup(b"c", "r", 0, 8)
    assert harness.held() == 0


def test_what_a_worker_has_picked_up_outlives_its_request(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    harness.ask(*CHUNKS)
    references = harness.storage.acquire(WORKER, "r", space(), CHUNKS[:3], 0)
    assert references is not None
    harness.storage.end_lookup(b"c", "r")
    assert harness.held() == 3
    harness.storage.clear(force=True)
    assert bytes(harness.storage.payload(references.slots[2])) == CHUNKS[2] * (PAYLOAD // 32)
    harness.storage.release(references)
    assert (harness.held(), harness.cache.objects) == (0, 0)


def test_pings_keep_what_is_queued(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    harness.ask(*CHUNKS)
    for _ in range(4):
        harness.pass_time(READ_TTL - 10)
        harness.storage.renew_lookups(b"c")
    assert harness.held() == 8
    references = harness.storage.acquire(WORKER, "r", space(), CHUNKS, 0)
    assert references is not None
    harness.storage.release(references)
    assert harness.held() == 0


# --- what a worker has


@pytest.mark.parametrize("answer", ["commit", "abandon", "unregister"])
def test_slots_of_a_late_writer_wait_for_its_answer_and_are_never_published(full: StorageHarness, answer: str) -> None:
    references, _ = full.storage.reserve(WORKER, space(), CHUNKS)
    assert free_slots(full) == 0
    full.pass_time(WRITE_TTL + 1)
    assert (full.cache.contents.state_counts().quarantined, free_slots(full)) == (8, 0)
    assert full.events.of(LeasesExpired)[-1] == LeasesExpired(0, 8)
    full.storage.payload(references.slots[0])[:] = b"\xab" * PAYLOAD  # it may still write
    match answer:
        case "commit":
            assert not full.storage.publish(references, 0, "r")
        case "abandon":
            full.storage.discard(references)
        case _:
            full.storage.end_worker(WORKER)
    assert (full.cache.contents.state_counts().quarantined, full.cache.objects, free_slots(full)) == (0, 0, 8)


@pytest.mark.parametrize("answer", ["commit", "unregister"])
def test_slots_of_a_late_reader_wait_for_its_answer(full: StorageHarness, answer: str) -> None:
    full.put(*CHUNKS)
    full.settle()
    references = full.storage.acquire(WORKER, "r", space(), CHUNKS, 0)
    assert references is not None
    full.pass_time(READ_TTL + 1)
    full.storage.clear(force=True)
    assert (full.cache.contents.state_counts().quarantined, free_slots(full)) == (8, 0)
    assert not full.storage.is_live(references)
    assert bytes(full.storage.payload(references.slots[0])) == CHUNKS[0] * (PAYLOAD // 32)
    if answer == "commit":
        full.storage.release(references)
    else:
        full.storage.end_worker(WORKER)
    assert (full.cache.contents.state_counts().quarantined, free_slots(full)) == (0, 8)


def test_what_was_half_written_is_discarded_with_its_worker(full: StorageHarness) -> None:
    references, _ = full.storage.reserve(WORKER, space(), CHUNKS)
    full.storage.payload(references.slots[0])[:] = b"\xab" * PAYLOAD
    full.storage.end_worker(WORKER)
    assert (full.cache.objects, free_slots(full)) == (0, 8)
    full.ask(*CHUNKS)
    full.settle()
    assert full.answer() == 0


def test_the_end_of_one_worker_touches_no_other(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    mine = harness.storage.acquire(1, "r", space(), CHUNKS, 0)
    harness.storage.end_worker(2)
    assert mine is not None
    assert harness.storage.is_live(mine)
    assert harness.held() == 8


# --- interleavings


def test_a_worker_that_comes_when_the_lookups_time_is_over_has_a_hold_of_its_own(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    harness.ask(*CHUNKS)
    harness.clock.advance(READ_TTL + 1)
    harness.cache.leases.expire(harness.clock.monotonic())  # the lease is over, and the lookup is still in the table
    references = harness.storage.acquire(WORKER, "r", space(), CHUNKS, 0)
    assert references is not None
    harness.storage.expire()
    harness.storage.end_lookup(b"c", "r")
    assert harness.held() == 8
    harness.storage.release(references)
    assert harness.held() == 0


def test_an_engine_that_frees_before_it_has_its_answer_changes_nothing(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS)
    harness.put(*CHUNKS[:4])
    harness.ask(*CHUNKS)
    harness.storage.free_lookup(b"c", "r", 0, 8)
    harness.settle()
    assert (harness.answer(), harness.held()) == (8, 8)


def test_a_worker_that_reads_before_the_answer_takes_nothing_from_the_lookup(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS)
    harness.put(*CHUNKS[:4])
    harness.ask(*CHUNKS)
    references = harness.storage.acquire(WORKER, "r", space(), CHUNKS[:4], 0)
    assert references is not None
    harness.storage.release(references)
    harness.settle()
    assert (harness.answer(), harness.held()) == (8, 8)


def test_a_request_that_ends_while_its_loads_run_and_comes_again(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS)
    harness.ask(*CHUNKS)
    harness.turn()
    harness.finish("lookup")
    harness.storage.end_lookup(b"c", "r")
    harness.ask(*CHUNKS)
    harness.settle()
    assert harness.answer() == 8
    harness.storage.end_lookup(b"c", "r")
    assert (harness.held(), harness.cache.objects, harness.pins()) == (0, 0, 0)


def test_a_request_that_ends_without_its_answer_is_not_a_hit(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS)
    harness.put(*CHUNKS[:4])
    harness.ask(*CHUNKS)
    harness.cache.take_access_log()
    harness.storage.end_lookup(b"c", "r")
    harness.settle()
    counted = total(harness.storage.counters.snapshot())
    assert (counted.lookups, counted.abandoned, counted.requested_chunks) == (0, 1, 0)
    assert not [entry for entry in harness.cache.take_access_log() if isinstance(entry, Accessed)]
    assert not harness.events.of(LookupFinished)


def test_a_load_that_comes_after_the_deadline_serves_who_asks_then(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS)
    harness.ask(*CHUNKS)
    harness.turn()
    harness.finish("lookup")
    harness.pass_time(LOOKUP_TIMEOUT)
    assert harness.answer() == 0
    harness.ask(*CHUNKS, request="next")
    harness.turn()
    harness.finish("lookup")
    assert len(harness.jobs("load")) == 1, "it is under way already"
    harness.settle()
    assert harness.answer("next") == 8


def test_threads_that_do_everything_at_once_leave_nothing_held(harness: StorageHarness) -> None:
    harness.put(*CHUNKS)
    harness.settle()
    faults: list[Exception] = []

    def engine(number: int) -> None:
        numbers, connection = random.Random(number), bytes([number])
        try:
            for step in range(300):
                request = str(step % 3)
                harness.ask(*CHUNKS[: numbers.randint(0, 8)], request=request, connection=connection)
                hits = harness.storage.lookup_result(connection, request)
                assert hits is not None
                references = harness.storage.acquire(number, request, space(), CHUNKS[:hits], 0) if hits else None
                if numbers.random() < 0.5:
                    harness.storage.free_lookup(connection, request, 0, numbers.randint(0, 8))
                if numbers.random() < 0.5:
                    harness.storage.end_lookup(connection, request)
                if references:
                    assert bytes(harness.storage.payload(references.slots[-1])[:32]) == CHUNKS[hits - 1]
                    harness.storage.release(references)
                harness.storage.renew_lookups(connection)
                harness.storage.expire()
        except Exception as error:  # noqa: BLE001 - the test's thread tells of it
            faults.append(error)

    threads = [threading.Thread(target=engine, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    for number in range(4):
        for request in ("0", "1", "2"):
            harness.storage.end_lookup(bytes([number]), request)
    counts = harness.cache.contents.state_counts()
    assert (counts.held, counts.quarantined, counts.leases) == (0, 0, 0)
