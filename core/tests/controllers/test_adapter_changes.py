"""Adapters come and go under the store controller and the prefetch controller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from core.tests.controllers.store_harness import OBJECT, TIMEOUT, StoreHarness, chunks
from core.tests.storage.storage_harness import CHUNKS, StorageHarness, open_storage
from core.tests.storage.storage_harness import space as storage_space
from lmcache_core.builtin.policies import open_load_from_first
from lmcache_core.contracts.events import StoresDropped
from lmcache_core.contracts.policies import AdapterFacts, PrefetchPlan, PrefetchPolicy, StoredObject, StorePlan
from lmcache_core.contracts.policies import StorePolicy as StorePolicyContract
from lmcache_core.controllers import prefetch_plan
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.store_queue import DropRule, StoreLimits
from lmcache_core.model.results import Bitmap, Outcome
from lmcache_devkit.cue_adapter import CueAdapter

AMPLE = StoreLimits(1 << 24)
NARROW = StoreLimits(8 * OBJECT)
"""Two objects are handed over at once, and the others wait."""
OpenStorage = Callable[..., StorageHarness]


@pytest.fixture
def harnesses() -> Iterator[list[StoreHarness]]:
    """Those that a test opens, to be closed after it."""
    opened: list[StoreHarness] = []
    yield opened
    for harness in opened:
        harness.close()


@pytest.fixture
def harness_of() -> Iterator[OpenStorage]:
    with ExitStack() as stack:
        yield lambda adapters: stack.enter_context(open_storage(StorageHarness(adapters=adapters)))


def new_port(harness: StoreHarness) -> tuple[AdapterClient, CueAdapter]:
    adapter, number = CueAdapter(), len(harness.clients)
    client = AdapterClient(number, f"cue-{number}", adapter, adapter.capabilities, harness.clock, TIMEOUT)
    harness.adapters.append(adapter)
    harness.clients.append(client)
    return client, adapter


# --- stores


def test_an_adapter_that_comes_gets_what_comes_after_it(harnesses: list[StoreHarness]) -> None:
    harnesses.append(harness := StoreHarness(AMPLE))
    harness.put(chunks(2, prompt=1))
    client, _ = new_port(harness)
    harness.store.add_adapter(client)
    harness.turn()
    harness.put(chunks(2, prompt=2))
    harness.settle(0)
    harness.settle(1)
    assert (harness.stored(chunks(2, prompt=1), 0), harness.stored(chunks(2, prompt=2), 0)) == ([0, 1], [0, 1])
    assert (harness.stored(chunks(2, prompt=1), 1), harness.stored(chunks(2, prompt=2), 1)) == ([], [0, 1])
    assert harness.store.drain(0)


def test_the_first_adapter_can_come_late(harnesses: list[StoreHarness]) -> None:
    harnesses.append(harness := StoreHarness(AMPLE, adapters=0))
    assert not harness.store.active
    client, _ = new_port(harness)
    harness.store.add_adapter(client)
    harness.turn()
    assert harness.store.active


def test_a_drain_finishes_what_waits_and_takes_nothing_new(harnesses: list[StoreHarness]) -> None:
    harnesses.append(harness := StoreHarness(NARROW))
    harness.put(chunks(6, prompt=1))
    change = harness.store.drain_adapter(harness.clients[0])
    assert not change.wait(0)
    harness.turn()
    assert change.wait(0)
    assert not harness.store.active
    assert harness.store.pending_for(harness.clients[0]) == (6, 6 * OBJECT)
    harness.put(chunks(2, prompt=2))
    harness.settle()
    assert harness.store.pending_for(harness.clients[0]) == (0, 0)
    assert (harness.stored(chunks(6, prompt=1)), harness.stored(chunks(2, prompt=2))) == ([0, 1, 2, 3, 4, 5], [])
    assert harness.store.drain(0)
    harness.store.drain_adapter(harness.clients[0], again=True)
    harness.turn()
    harness.put(chunks(2, prompt=3))
    harness.settle()
    assert harness.stored(chunks(2, prompt=3)) == [0, 1]


class ToAll(StorePolicyContract):
    """Whatever their state, all adapters get everything, and L1 keeps nothing."""

    def __init__(self) -> None:
        self.received: list[Sequence[AdapterFacts]] = []

    def plan(self, objects: Sequence[StoredObject], adapters: Sequence[AdapterFacts]) -> StorePlan:
        self.received.append(adapters)
        return StorePlan((tuple(range(len(adapters))),) * len(objects), drop_from_l1=True)


def test_a_store_policy_sees_a_drained_adapter_as_one_that_is_down(harnesses: list[StoreHarness]) -> None:
    policy = ToAll()
    harnesses.append(harness := StoreHarness(AMPLE, adapters=2))
    harness.store.plan_by(policy)
    harness.store.drain_adapter(harness.clients[0])
    harness.put(chunks(1))
    harness.settle(1)
    assert [[facts.healthy for facts in received] for received in policy.received] == [[False, True]]
    assert (harness.stored(chunks(1), 0), harness.stored(chunks(1), 1)) == ([], [0])
    assert harness.cache.contents.state_counts().free == harness.cache.contents.state_counts().total, (
        "it went to the other one, and left"
    )


def test_what_goes_nowhere_stays_in_l1(harnesses: list[StoreHarness]) -> None:
    harnesses.append(harness := StoreHarness(AMPLE, policy=ToAll()))
    harness.store.drain_adapter(harness.clients[0])
    assert harness.put(chunks(1)) == 1, "it is taken in, because the drain is not seen yet"
    harness.turn()
    assert harness.cache.contents.state_counts().cached == 1


def test_what_waits_for_a_removed_adapter_is_dropped_and_the_rest_is_answered(harnesses: list[StoreHarness]) -> None:
    harnesses.append(harness := StoreHarness(NARROW, adapters=2))
    harness.put(chunks(6))
    harness.turn()
    (job,) = harness.adapters[0].waiting
    harness.store.remove_adapter(harness.clients[0])
    harness.turn()
    (dropped,) = [event for event in harness.events.events if isinstance(event, StoresDropped)]
    assert (dropped.adapter, dropped.objects, dropped.reason) == ("cue-0", 6 - len(job.keys), "adapter_removed")
    assert harness.store.pending_for(harness.clients[0]) == (0, 0)
    assert list(harness.store.status()["adapters"]) == ["cue-1"]  # type: ignore[call-overload]
    harness.adapters[0].finish(job)
    harness.turn()
    harness.adapters[1].finish(harness.adapters[1].waiting[0])
    for _ in range(6):
        harness.turn()
        for waiting in list(harness.adapters[1].waiting):
            harness.adapters[1].finish(waiting)
    harness.turn()
    assert harness.stored(chunks(6), 1) == [0, 1, 2, 3, 4, 5]
    assert harness.store.drain(0)
    assert harness.cache.contents.state_counts().held == 0


def test_a_store_that_is_abandoned_keeps_its_slots_until_the_adapter_releases_them(
    harnesses: list[StoreHarness],
) -> None:
    harnesses.append(harness := StoreHarness(AMPLE))
    harness.put(chunks(3))
    harness.turn()
    (job,) = harness.adapters[0].waiting
    harness.store.remove_adapter(harness.clients[0])
    harness.turn()
    harness.clients[0].abandon()
    harness.clients[0].expire(harness.clock.monotonic())
    harness.clients[0].shut()
    harness.turn()
    assert (harness.clients[0].abandoned, harness.clients[0].timeouts) == (3, 0)
    counts = harness.cache.contents.state_counts()
    assert (counts.quarantined, harness.clients[0].borrowed_bytes, harness.clients[0].jobs.unanswered) == (
        3,
        3 * OBJECT,
        0,
    )
    harness.adapters[0].finish(job)
    harness.turn()
    assert (
        harness.cache.contents.state_counts().quarantined,
        harness.cache.contents.state_counts().held,
        harness.clients[0].borrowed_bytes,
    ) == (
        0,
        0,
        0,
    )
    assert harness.store.drain(0)


def test_limits_apply_to_what_waits_already(harnesses: list[StoreHarness]) -> None:
    harnesses.append(harness := StoreHarness(NARROW))
    harness.put(chunks(8))
    harness.turn()
    harness.store.limit(StoreLimits(4 * OBJECT, drop=DropRule.OLDEST))
    harness.turn()
    account = harness.snapshot()
    assert account.dropped_by_reason == {"backlog_bytes": 4}
    assert harness.store.status()["backlog_max_bytes"] == 4 * OBJECT
    harness.settle()
    assert len(harness.stored(chunks(8))) == 4


def test_a_port_that_was_shut_answers_for_the_adapter(harnesses: list[StoreHarness]) -> None:
    harnesses.append(harness := StoreHarness(AMPLE))
    harness.put(chunks(2))
    harness.clients[0].shut()
    harness.turn()
    harness.turn()
    assert harness.adapters[0].waiting == []
    assert harness.snapshot().failed_by_outcome == {"failed": 2}


# --- loads


def test_a_lookup_does_not_wait_for_an_adapter_that_is_removed(harness_of: OpenStorage) -> None:
    harness = harness_of(2)
    harness.put_in_l2(*CHUNKS[:3], only=1)
    harness.ask(*CHUNKS[:3])
    harness.turn()
    (job,) = [job for adapter, job in harness.jobs("lookup") if adapter is harness.adapters[1]]
    harness.adapters[1].finish(job)
    harness.turn()
    assert harness.jobs("load") == [], "the first adapter has not said what it has"
    harness.prefetch.remove_adapter(harness.clients[0])
    harness.turn()
    assert [adapter for adapter, _ in harness.jobs("load")] == [harness.adapters[1]]
    harness.finish("load")
    assert harness.answer() == 3
    (late,) = harness.jobs("lookup")
    late[0].finish(late[1])
    harness.turn()
    assert harness.adapters[0].pins.total() == 0
    harness.storage.end_lookup(b"c", "r")


def test_a_lookup_ends_as_a_miss_when_the_only_adapter_goes(harness_of: OpenStorage) -> None:
    harness = harness_of(1)
    harness.put_in_l2(*CHUNKS[:3])
    for how in ("asked", "found", "loading"):
        harness.ask(*CHUNKS[:3], request=how)
    harness.turn()
    harness.prefetch.remove_adapter(harness.client)
    harness.turn()
    assert [harness.answer(how) for how in ("asked", "found")] == [0, 0]
    harness.settle()
    assert harness.answer("loading") == 0
    assert harness.pins() == 0
    assert not harness.prefetch.active


def test_what_is_under_way_arrives_and_nothing_more_is_asked_for(
    harness_of: OpenStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch_plan, "SLICE_CELLS", 2)
    monkeypatch.setattr(prefetch_plan, "IN_FLIGHT_CELLS", 2)
    harness = harness_of(2)
    harness.put_in_l2(*CHUNKS[:6])
    harness.ask(*CHUNKS[:6])
    harness.turn()
    harness.finish("lookup")
    assert [(adapter, len(job.keys)) for adapter, job in harness.jobs("load")] == [(harness.adapters[0], 2)]
    harness.prefetch.remove_adapter(harness.clients[0])
    harness.finish("load")
    assert [(adapter, len(job.keys)) for adapter, job in harness.jobs("load")] == [(harness.adapters[1], 2)]
    harness.settle()
    assert harness.answer() == 6
    harness.storage.end_lookup(b"c", "r")


def test_a_load_that_is_abandoned_comes_from_elsewhere_and_its_slots_stay_apart(harness_of: OpenStorage) -> None:
    harness = harness_of(2)
    harness.put_in_l2(*CHUNKS[:4])
    harness.ask(*CHUNKS[:4])
    harness.turn()
    harness.finish("lookup")
    ((stalled, job),) = harness.jobs("load")
    assert stalled is harness.adapters[0]
    harness.prefetch.remove_adapter(harness.clients[0])
    harness.turn()
    harness.clients[0].abandon()
    harness.clients[0].expire(harness.clock.monotonic())
    harness.clients[0].shut()
    harness.turn()
    assert harness.cache.contents.state_counts().quarantined == 4
    stalled.waiting.remove(job)
    harness.settle()
    assert harness.answer() == 4
    stalled.waiting.append(job)
    stalled.fail(job)  # which scribbles on its buffers, as late as this
    references = harness.storage.acquire(7, "r", storage_space(), CHUNKS[:4], 0)
    assert references is not None
    assert [bytes(harness.storage.payload(slot)[:32]) for slot in references.slots] == list(CHUNKS[:4])
    harness.storage.release(references)
    harness.turn()
    assert harness.cache.contents.state_counts().quarantined == 0
    harness.storage.end_lookup(b"c", "r")
    stalled.pins.clear()


def test_an_adapter_that_comes_is_asked(harness_of: OpenStorage) -> None:
    harness = harness_of(2)
    first, second = harness.clients
    harness.prefetch.remove_adapter(second)
    harness.turn()
    harness.put_in_l2(*CHUNKS[:2], only=1)
    harness.ask(*CHUNKS[:2], request="before")
    harness.settle()
    assert harness.answer("before") == 0
    fresh = AdapterClient(2, "cue2", second.adapter, second.capabilities, harness.clock, 30.0)
    harness.clients[1] = fresh
    harness.prefetch.add_adapter(fresh)
    harness.ask(*CHUNKS[:2], request="after")
    harness.settle()
    assert harness.answer("after") == 2
    harness.storage.end_lookup(b"c", "after")
    assert harness.prefetch._clients == (first, fresh)


class Leave(PrefetchPolicy):
    """Loads nothing."""

    def plan(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts]) -> PrefetchPlan:
        return PrefetchPlan((None,) * found[0].size)


def test_another_prefetch_policy_and_other_bounds(harness_of: OpenStorage) -> None:
    harness = harness_of(1)
    harness.put_in_l2(*CHUNKS[:2])
    harness.prefetch.plan_by(Leave())
    harness.ask(*CHUNKS[:2], request="leave")
    harness.settle()
    assert harness.answer("leave") == 0
    harness.prefetch.plan_by(open_load_from_first(None))
    harness.prefetch.bound(max_in_flight=1, l1_max_bytes=8192, lookup_timeout_seconds=3.0)
    harness.ask(*CHUNKS[:2], request="one")
    harness.turn()
    status = harness.prefetch.status()
    assert (status["max_in_flight"], status["l1_max_bytes"]) == (1, 8192)
    harness.finish("lookup")
    harness.pass_time(3.1)
    assert harness.answer("one") == 0
    harness.settle()
    assert harness.held() == 0


def test_jobs_have_as_long_as_is_said_when_they_begin(harnesses: list[StoreHarness]) -> None:
    harnesses.append(harness := StoreHarness(AMPLE))
    harness.clients[0].timeout_seconds = 5.0
    harness.put(chunks(1))
    harness.turn()
    harness.clock.advance(6)
    harness.clients[0].expire(harness.clock.monotonic())
    harness.turn()
    assert harness.snapshot().failed_by_outcome == {Outcome.TIMED_OUT.value: 1}
    harness.adapters[0].fail(harness.adapters[0].waiting[0])
    harness.turn()


def test_what_one_adapter_keeps_is_not_waited_for_and_what_another_is_given_is(harnesses: list[StoreHarness]) -> None:
    harnesses.append(harness := StoreHarness(AMPLE, adapters=2))
    harness.put(chunks(3))
    harness.turn()
    (kept,), (other,) = harness.adapters[0].waiting, harness.adapters[1].waiting
    harness.clients[0].abandon()
    harness.clients[0].expire(harness.clock.monotonic())
    harness.turn()
    assert (harness.store.backlog.size_bytes, harness.store.drain(0)) == (3 * OBJECT, False)
    harness.adapters[1].finish(other)
    harness.turn()
    assert (harness.store.backlog.size_bytes, harness.store.drain(0)) == (0, True)
    assert harness.cache.contents.state_counts().quarantined == 3
    harness.adapters[0].finish(kept)
    harness.turn()
    assert (harness.store.backlog.size_bytes, harness.store.drain(0)) == (0, True)
    assert (harness.cache.contents.state_counts().quarantined, harness.cache.contents.state_counts().held) == (0, 0)
    assert harness.put(chunks(1, prompt=2)) == 1
    assert not harness.store.drain(0)
    for number in range(2):
        harness.settle(number)


def test_what_the_last_adapter_keeps_leaves_the_backlog_at_its_answer(harnesses: list[StoreHarness]) -> None:
    """The other order: the healthy one has answered when the stalled one is abandoned."""
    harnesses.append(harness := StoreHarness(AMPLE, adapters=2))
    harness.put(chunks(3))
    harness.turn()
    harness.adapters[1].finish(harness.adapters[1].waiting[0])
    harness.turn()
    assert not harness.store.drain(0)
    harness.clients[0].abandon()
    harness.clients[0].expire(harness.clock.monotonic())
    harness.turn()
    assert (harness.store.backlog.size_bytes, harness.store.drain(0)) == (0, True)
    harness.adapters[0].finish(harness.adapters[0].waiting[0])
    harness.turn()
    assert (harness.store.backlog.size_bytes, harness.cache.contents.state_counts().held) == (0, 0)


def test_what_one_adapter_releases_is_still_on_its_way_to_another(harnesses: list[StoreHarness]) -> None:
    harnesses.append(harness := StoreHarness(AMPLE, adapters=2))
    harness.put(chunks(3))
    harness.turn()
    harness.clients[0].abandon()
    harness.clients[0].expire(harness.clock.monotonic())
    harness.turn()
    harness.adapters[0].finish(harness.adapters[0].waiting[0])
    harness.turn()
    assert (harness.store.backlog.size_bytes, harness.store.drain(0)) == (3 * OBJECT, False)
    harness.adapters[1].finish(harness.adapters[1].waiting[0])
    harness.turn()
    assert (harness.store.backlog.size_bytes, harness.store.drain(0)) == (0, True)
    assert harness.cache.contents.state_counts().held == 0
