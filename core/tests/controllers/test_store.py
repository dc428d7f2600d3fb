"""What goes to L2: once, sealed, within the bounds of each adapter, and every object accounted for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from core.tests.controllers.store_harness import OBJECT, SPACE, TIMEOUT, StoreHarness, chunks
from lmcache_core.contracts.events import StoresDropped, StoreSubmitted
from lmcache_core.contracts.policies import AdapterFacts, StoredObject, StorePlan, StorePolicy
from lmcache_core.controllers.store_queue import DropRule, StoreLimits
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import Outcome

Open = Callable[..., StoreHarness]
AMPLE = StoreLimits(1 << 24)


@pytest.fixture
def open_harness() -> Iterator[Open]:
    depots: list[StoreHarness] = []

    def start(limits: StoreLimits = AMPLE, adapters: int = 1, policy: StorePolicy | None = None) -> StoreHarness:
        depots.append(StoreHarness(limits, adapters, policy))
        return depots[-1]

    yield start
    for harness in depots:
        harness.close()


def test_everything_that_is_stored_is_sealed_and_then_released(open_harness: Open) -> None:
    harness = open_harness()
    harness.put(chunks(40))
    harness.turn()
    assert harness.cache.contents.state_counts().held == 40
    harness.settle()
    assert harness.stored(chunks(40)) == list(range(40))
    assert harness.cache.contents.state_counts().held == 0
    assert harness.snapshot()[:2] == (40, 40)
    assert harness.store.drain(0)


def test_one_object_goes_out_once_to_each_adapter_however_often_it_is_stored_meanwhile(open_harness: Open) -> None:
    harness = open_harness(adapters=2)
    harness.put(chunks(3))
    harness.turn()
    harness.settle(1)
    harness.cache.contents.clear(force=True)
    harness.put(chunks(3))
    harness.turn()
    assert [len(adapter.waiting) for adapter in harness.adapters] == [1, 1]
    assert harness.snapshot(0).merged == 3, "still on its way there"
    assert harness.snapshot(1).merged == 0, "it had arrived there, so it goes again"
    for number in (0, 1):
        harness.settle(number)
        assert harness.stored(chunks(3), number) == [0, 1, 2]
    assert harness.snapshot(0).admitted == 3
    assert harness.snapshot(1).admitted == 6
    assert harness.cache.contents.state_counts().held == 0


def test_a_slow_adapter_makes_no_other_one_drop(open_harness: Open) -> None:
    harness = open_harness(StoreLimits(8 * OBJECT), adapters=2)
    for prompt in range(8):
        harness.put(chunks(6, prompt))
        harness.turn()
        harness.settle(1)
    slow, quick = harness.snapshot(0), harness.snapshot(1)
    assert (quick.stored, quick.dropped) == (48, 0)
    assert slow.dropped == 40
    assert slow.backlog_bytes == 8 * OBJECT
    dropped = [event for event in harness.events.events if isinstance(event, StoresDropped)]
    assert {(event.adapter, event.reason) for event in dropped} == {("cue-0", "backlog_bytes")}
    assert sum(event.objects for event in dropped) == 40
    assert harness.cache.contents.state_counts().held == 8, "what was dropped is held no more"
    harness.settle(0)
    assert harness.snapshot(0).stored == 8
    assert harness.cache.contents.state_counts().held == 0


@pytest.mark.parametrize(
    ("rule", "first", "second"),
    [
        (DropRule.NEWEST, [0, 1, 2, 3, 4, 5], [0, 1]),
        (DropRule.OLDEST, [0, 1], [0, 1, 2, 3, 4, 5]),
        (DropRule.DEEPEST, [0, 1, 2, 3], [0, 1, 2, 3]),
    ],
)
def test_the_rule_says_which_waiting_chunks_go(
    open_harness: Open, rule: DropRule, first: Sequence[int], second: Sequence[int]
) -> None:
    """Two chunks are with the adapter already; of each prompt the head stays."""
    harness = open_harness(StoreLimits(8 * OBJECT, drop=rule))
    for prompt in (1, 2):
        harness.put(chunks(6, prompt))
        harness.turn()
    harness.settle()
    assert harness.stored(chunks(6, 1)) == first
    assert harness.stored(chunks(6, 2)) == second
    assert harness.snapshot().dropped == 4


def test_a_prompt_that_comes_in_parts_loses_its_end(open_harness: Open) -> None:
    harness = open_harness(StoreLimits(8 * OBJECT))
    prompt = chunks(16)
    harness.put(prompt[8:], first_chunk=8)
    harness.turn()
    harness.put(prompt[:8])
    harness.settle()
    assert harness.stored(prompt) == [0, 1, 2, 3, 4, 5, 8, 9], "8 and 9 were with the adapter when the others came"


def test_what_an_adapter_takes_too_long_for_is_dropped(open_harness: Open) -> None:
    harness = open_harness(StoreLimits(64 * OBJECT, backlog_seconds=4.0))
    for part in range(4):
        harness.put(chunks(16, part))
        harness.turn()
    harness.clock.advance(7.0)
    harness.turn()
    assert harness.snapshot().dropped == 0, "nothing is known of its speed"
    harness.clock.advance(1.0)
    harness.adapters[0].finish(harness.adapters[0].waiting[0])  # the 16 that it was given at once, in 8 seconds
    harness.turn()
    status = harness.store.status()["adapters"]
    assert isinstance(status, dict)
    assert status["cue-0"]["bytes_per_second"] == 2 * OBJECT
    account = harness.snapshot()
    assert account.dropped_by_reason == {"backlog_seconds": 32}
    assert account.backlog_bytes == 16 * OBJECT, (
        "more is with the adapter than it takes in 4 seconds, and nothing waits"
    )
    harness.settle()
    assert harness.snapshot().stored == 32


def test_a_batch_that_is_larger_than_the_backlog_keeps_its_head(open_harness: Open) -> None:
    harness = open_harness(StoreLimits(4 * OBJECT))
    harness.put(chunks(30))
    harness.settle()
    assert harness.stored(chunks(30)) == [0, 1, 2, 3]


def test_a_controller_that_is_far_behind_takes_nothing_in(open_harness: Open) -> None:
    harness = open_harness(StoreLimits(4 * OBJECT))
    assert harness.put(chunks(4, 1))
    assert not harness.put(chunks(4, 2))
    assert harness.store.status()["refused"] == 4
    (event,) = [event for event in harness.events.events if isinstance(event, StoresDropped)]
    assert event == StoresDropped("", 4, 4 * OBJECT, "controller_behind")
    harness.settle()
    assert harness.put(chunks(4, 3))
    harness.settle()
    assert harness.snapshot().stored == 8


def test_a_failure_is_final_and_one_adapters_own(open_harness: Open) -> None:
    harness = open_harness(adapters=2)
    harness.put(chunks(5))
    harness.settle(0, Outcome.FAILED)
    harness.settle(1)
    assert (harness.snapshot(0).failed, harness.snapshot(1).stored) == (5, 5)
    harness.put(chunks(2, 2))
    harness.settle(0, Outcome.REJECTED)
    harness.settle(1)
    assert harness.snapshot(0).failed_by_outcome == {"failed": 5, "rejected": 2}
    assert len([event for event in harness.events.events if isinstance(event, StoreSubmitted)]) == 4
    assert harness.cache.contents.state_counts().held == 0


def test_what_waits_for_an_adapter_that_does_not_answer_is_dropped(open_harness: Open) -> None:
    harness = open_harness(StoreLimits(16 * OBJECT), adapters=2)
    harness.put(chunks(12))
    harness.turn()
    harness.clock.advance(TIMEOUT + 1)
    harness.clients[0].expire(harness.clock.monotonic())
    harness.settle(1)
    account = harness.snapshot(0)
    assert (account.failed, account.dropped_by_reason) == (4, {"adapter_down": 8})
    assert harness.snapshot(1).stored == 12
    assert (
        harness.cache.contents.state_counts().quarantined == 12
        or harness.cache.contents.state_counts().quarantined == 4
    )
    harness.settle(0)
    assert harness.cache.contents.state_counts().quarantined == 0
    assert harness.cache.contents.state_counts().held == 0
    assert harness.snapshot(0).failed == 4, "an answer that comes too late changes nothing"


class BufferOnly(StorePolicy):
    def plan(self, objects: Sequence[StoredObject], adapters: Sequence[AdapterFacts]) -> StorePlan:
        return StorePlan(((0,),) * len(objects), drop_from_l1=True)


def test_objects_leave_l1_when_they_have_arrived_were_dropped_or_are_there_twice(open_harness: Open) -> None:
    harness = open_harness(StoreLimits(8 * OBJECT), policy=BufferOnly())
    harness.put(chunks(12))
    harness.turn()
    harness.settle()
    assert harness.cache.objects == 0
    assert harness.stored(chunks(12)) == list(range(8))


@pytest.mark.parametrize("method", ["fetch", "seal", "publish", "submit_store"])
def test_a_submission_that_trips_is_a_failure_of_its_objects(
    open_harness: Open, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("injected")

    harness = open_harness(adapters=2)
    harness.put(chunks(3))
    owner = {"seal": "lmcache_core.l1.cache.seal"}.get(method)
    with monkeypatch.context() as patch:
        if owner:
            patch.setattr(owner, fail)
        else:
            owners = {"publish": harness.events, "fetch": harness.cache}  # fetch: a disk that loses bytes
            patch.setattr(owners.get(method, harness.clients[0]), method, fail)
        with pytest.raises(RuntimeError):
            harness.turn()
    assert harness.snapshot(0).failed == 3
    harness.settle(1)
    assert harness.snapshot(1).stored == 3
    assert harness.cache.contents.state_counts().held == 0
    assert harness.store.drain(0)


def test_a_batch_that_raises_is_counted_as_dropped_and_released(
    open_harness: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = open_harness(adapters=2)

    def fail(units: object) -> None:
        raise RuntimeError("injected")

    harness.put(chunks(8))
    with monkeypatch.context() as patch:
        patch.setattr(harness.store._queues[1], "add", fail)
        with pytest.raises(RuntimeError):
            harness.turn()
    assert harness.snapshot(0).dropped_by_reason == {"controller_failed": 8}
    assert harness.snapshot(1).admitted == 0
    assert harness.events.events == [StoresDropped("cue-0", 8, 8 * OBJECT, "controller_failed")]
    assert harness.cache.contents.state_counts().held == 0
    assert harness.store.drain(0)
    harness.cache.contents.clear(force=False)
    harness.put(chunks(8))
    for number in (0, 1):
        harness.settle(number)
        assert harness.stored(chunks(8), number) == list(range(8))


def test_what_adapters_are_given_is_named_by_its_key(open_harness: Open) -> None:
    harness = open_harness()
    harness.put(chunks(2))
    harness.turn()
    assert harness.clients[0].in_use() == {ObjectKey(SPACE, chunk) for chunk in chunks(2)}
    harness.settle()
    assert harness.clients[0].in_use() == set()
