"""Room in an adapter: what the policy names is deleted, in slices, and nothing that is in use."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from lmcache_client.errors import ConfigError
from lmcache_core.builtin.lru import open_lru
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.events import ObjectsEvicted
from lmcache_core.contracts.l2_adapter import LoadItem, StoreItem
from lmcache_core.contracts.l2_eviction import L2EvictionContext
from lmcache_core.controllers.policy_guard import GuardedPolicy
from lmcache_core.model.results import Outcome, Usage
from lmcache_policies.l2_eviction import watermark
from lmcache_policies.l2_eviction.watermark import WatermarkSettings, open_watermark
from plugins.policies.tests.l2_eviction.eviction_harness import CAPACITY, OBJECT, EvictionHarness, key


def test_beyond_the_watermark_the_oldest_fifth_goes(eviction_harness: EvictionHarness) -> None:
    eviction_harness.store(*range(40))
    eviction_harness.store(*range(40, 80))
    assert eviction_harness.deletes() == [], "at the watermark"
    eviction_harness.look(0, 1)
    eviction_harness.store(80)
    deleted = eviction_harness.delete()
    assert deleted == list(range(39, 22, -1)), "a fifth of 81; of what was stored together, the end of the prompt first"
    assert eviction_harness.there() == set(range(81)) - set(deleted)
    assert eviction_harness.deletes() == []
    status = eviction_harness.eviction.status()
    assert (status["evicted"], status["evicted_bytes"], status["known_objects"]) == (17, 17 * OBJECT, 64)
    assert eviction_harness.events.events == [ObjectsEvicted("cue", 17, 17 * OBJECT, 0.81)]


def test_large_evictions_go_in_slices(eviction_harness: EvictionHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watermark, "SLICE", 5)
    eviction_harness.store(*range(90))
    assert [len(eviction_harness.delete()) for _ in range(4)] == [5, 5, 5, 3]
    assert eviction_harness.deletes() == []


def test_it_goes_on_until_the_watermark_is_kept(eviction_harness: EvictionHarness) -> None:
    eviction_harness.store(*range(100))
    eviction_harness.delete()
    assert len(eviction_harness.adapter.objects) == 80
    assert eviction_harness.deletes() == []
    eviction_harness.store(*range(100, 140))
    eviction_harness.delete()
    eviction_harness.delete()
    assert len(eviction_harness.adapter.objects) <= 80


def test_a_pinned_object_is_skipped_and_tried_again(eviction_harness: EvictionHarness) -> None:
    eviction_harness.store(*range(90))
    refused = eviction_harness.delete(Outcome.REJECTED)
    assert eviction_harness.deletes() == [], "not again at once"
    eviction_harness.turn()
    assert eviction_harness.deletes() == []
    eviction_harness.later()
    assert eviction_harness.delete() == refused
    assert eviction_harness.eviction.status()["refused"] == 18
    assert len(eviction_harness.adapter.objects) == 72


def test_one_that_cannot_be_deleted_keeps_no_other_from_it(
    eviction_harness: EvictionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watermark, "SLICE", 9)
    eviction_harness.store(*range(90))
    first = eviction_harness.delete(Outcome.FAILED)
    second = eviction_harness.delete()
    assert set(first).isdisjoint(second)
    assert eviction_harness.eviction.status()["failed"] == 9


@pytest.mark.parametrize("verb", ["store", "load"])
def test_what_is_being_stored_or_loaded_is_not_deleted(eviction_harness: EvictionHarness, verb: str) -> None:
    eviction_harness.store(*range(80))
    busy = list(range(70, 80))
    if verb == "store":
        eviction_harness.client.submit_store(
            [StoreItem(key(n), eviction_harness.buffer()) for n in busy], eviction_harness.inbox, None
        )
    else:
        eviction_harness.client.submit_load(
            [LoadItem(key(n), eviction_harness.buffer()) for n in busy], eviction_harness.inbox, None
        )
    eviction_harness.store(80)
    assert eviction_harness.delete() == [*range(69, 52, -1)]


def test_what_is_stored_again_while_it_is_deleted_stays_known(eviction_harness: EvictionHarness) -> None:
    eviction_harness.store(*range(90))
    doomed = eviction_harness.deletes()
    job = next(job for job in eviction_harness.adapter.waiting if job.verb == "delete")
    eviction_harness.adapter.finish(job)
    eviction_harness.store(doomed[0])
    assert eviction_harness.eviction.status()["known_objects"] == len(eviction_harness.adapter.objects) == 73
    eviction_harness.store(doomed[1], size=2 * OBJECT)
    assert eviction_harness.eviction.status()["known_bytes"] == 75 * OBJECT


def test_what_is_freed_is_what_was_deleted_whatever_is_stored_again(eviction_harness: EvictionHarness) -> None:
    eviction_harness.store(*range(90))
    doomed = eviction_harness.deletes()
    job = next(job for job in eviction_harness.adapter.waiting if job.verb == "delete")
    eviction_harness.adapter.finish(job)
    held_back = eviction_harness.adapter._completions._items.pop()
    eviction_harness.store(*doomed[:4], size=2 * OBJECT)
    eviction_harness.adapter._completions.post(held_back)
    eviction_harness.turn()
    counters = eviction_harness.eviction.counts
    assert counters.evicted_bytes == counters.evicted * OBJECT


def test_what_an_adapter_kept_though_it_was_over_time_is_evicted_in_its_turn(eviction_harness: EvictionHarness) -> None:
    eviction_harness.client.submit_store(
        [StoreItem(key(200 + n), eviction_harness.buffer()) for n in range(10)], eviction_harness.inbox, None
    )
    late = eviction_harness.adapter.waiting[-1]
    eviction_harness.adapter.time_out(late)
    eviction_harness.turn()
    eviction_harness.adapter.objects.update({name.object_id: bytes(OBJECT) for name in late.keys})
    eviction_harness.store(*range(75))
    assert eviction_harness.deletes() == [], "the adapter may still write them"
    eviction_harness.adapter.release_buffers(late)
    eviction_harness.turn()
    assert set(eviction_harness.delete()) >= set(range(200, 210)), "they are the oldest"
    assert eviction_harness.there() <= set(range(75))


def test_what_was_not_kept_after_all_is_forgotten_when_its_turn_comes(eviction_harness: EvictionHarness) -> None:
    eviction_harness.client.submit_store(
        [StoreItem(key(200 + n), eviction_harness.buffer()) for n in range(10)], eviction_harness.inbox, None
    )
    late = eviction_harness.adapter.waiting[-1]
    eviction_harness.adapter.time_out(late)
    eviction_harness.adapter.release_buffers(late)
    eviction_harness.turn()
    eviction_harness.store(*range(90))
    while eviction_harness.deletes():
        eviction_harness.delete()
        eviction_harness.later()
    assert len(eviction_harness.adapter.objects) <= 80
    assert eviction_harness.eviction.status()["gone"] == 10
    assert eviction_harness.eviction.status()["known_objects"] == len(eviction_harness.adapter.objects)


def test_an_object_that_changed_its_size_counts_with_the_new_one(eviction_harness: EvictionHarness) -> None:
    eviction_harness.store(1)
    eviction_harness.store(1, size=3 * OBJECT)
    status = eviction_harness.eviction.status()
    assert (status["known_objects"], status["known_bytes"]) == (1, 3 * OBJECT)


def test_what_is_gone_already_is_forgotten(eviction_harness: EvictionHarness) -> None:
    eviction_harness.store(*range(90))
    eviction_harness.adapter.objects = {key(number).object_id: bytes(OBJECT) for number in range(80, 90)}
    eviction_harness.delete(Outcome.MISSING)
    status = eviction_harness.eviction.status()
    assert (status["gone"], status["evicted"], status["known_objects"]) == (18, 0, 72)
    assert eviction_harness.events.events == []


def test_an_adapter_that_does_not_answer_is_asked_for_nothing(eviction_harness: EvictionHarness) -> None:
    eviction_harness.store(*range(90))
    eviction_harness.clock.advance(31)
    eviction_harness.client.expire(eviction_harness.clock.monotonic())
    eviction_harness.turn()
    eviction_harness.later(10)
    assert len([job for job in eviction_harness.adapter.waiting if job.verb == "delete"]) == 1, (
        "the one that is overdue"
    )
    eviction_harness.adapter.finish(next(job for job in eviction_harness.adapter.waiting if job.verb == "delete"))
    eviction_harness.later()
    assert eviction_harness.eviction.status()["known_objects"] == 90, "its answer came too late"
    eviction_harness.later()
    assert len(eviction_harness.adapter.objects) == 72


@pytest.mark.parametrize("capacity", [None, 0, -1])
def test_without_a_capacity_nothing_is_deleted_and_that_is_said_once(
    eviction_harness: EvictionHarness, caplog: pytest.LogCaptureFixture, capacity: int | None
) -> None:
    eviction_harness.adapter.capacity = capacity
    with caplog.at_level(logging.WARNING):
        for number in range(5):
            eviction_harness.store(number)
            eviction_harness.later()
    assert eviction_harness.deletes() == []
    (record,) = caplog.records
    assert "adapter=cue" in record.getMessage()


@pytest.mark.parametrize("stays", [False, True])
def test_usage_that_is_counted_now_and_then_does_not_empty_the_adapter(
    eviction_harness: EvictionHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stays: bool
) -> None:
    eviction_harness.store(*range(80))
    monkeypatch.setattr(eviction_harness.adapter, "usage", lambda: Usage(90 * OBJECT, CAPACITY, 90))
    with caplog.at_level(logging.WARNING):
        eviction_harness.store(*range(80, 90))
        assert len(eviction_harness.delete()) == 18
        for _ in range(5):
            eviction_harness.later()
            assert eviction_harness.deletes() == [], "nothing of that shows yet"
    (record,) = caplog.records
    assert "adapter=cue" in record.getMessage()
    if stays:  # as much came as was deleted, so the count is right
        eviction_harness.store(*range(100, 118))
        assert len(eviction_harness.deletes()) == 18
    else:
        monkeypatch.setattr(eviction_harness.adapter, "usage", lambda: Usage(85 * OBJECT, CAPACITY, 85))
        eviction_harness.later()
        assert len(eviction_harness.deletes()) == 17


def test_a_backend_that_is_down_is_left_alone_for_a_while(
    eviction_harness: EvictionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watermark, "SLICE", 2)
    eviction_harness.store(*range(90))
    for _ in range(4):
        eviction_harness.delete(Outcome.FAILED)
    eviction_harness.turn()
    assert eviction_harness.deletes() == []
    eviction_harness.later()
    assert len(eviction_harness.delete()) == 2


def test_an_adapter_that_keeps_a_job_is_given_no_other_slice(
    eviction_harness: EvictionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watermark, "SLICE", 5)
    eviction_harness.store(*range(90))
    overdue = eviction_harness.deletes()
    eviction_harness.clock.advance(31)
    eviction_harness.client.expire(eviction_harness.clock.monotonic())
    for _ in range(3):
        eviction_harness.later()
    assert eviction_harness.deletes() == overdue


def test_usage_that_fails_costs_nothing(eviction_harness: EvictionHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Usage | None:
        raise OSError("no")

    monkeypatch.setattr(eviction_harness.adapter, "usage", fail)
    eviction_harness.store(*range(5))
    monkeypatch.undo()
    eviction_harness.store(*range(5, 90))
    assert eviction_harness.delete()


def test_an_adapter_that_still_learns_what_it_holds_is_waited_for_in_silence(
    eviction_harness: EvictionHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(eviction_harness.adapter, "usage", lambda: None)
    with caplog.at_level(logging.WARNING):
        eviction_harness.store(*range(90))
        eviction_harness.later()
    assert eviction_harness.client.is_learning
    assert eviction_harness.deletes() == []
    assert caplog.records == []
    monkeypatch.undo()
    eviction_harness.later()
    assert len(eviction_harness.delete()) == 18


def test_what_an_operator_has_deleted_is_forgotten(open_harness: Callable[..., EvictionHarness]) -> None:
    eviction_harness = open_harness()
    eviction_harness.store(*range(10))
    keys = [key(number) for number in range(6)]
    eviction_harness.eviction.deleting(keys)
    eviction_harness.store(2)  # it is stored again before the deletion is notified
    eviction_harness.look(3)  # it was there after the deletion had begun: of another server, perhaps
    eviction_harness.eviction.deleted(keys, [name for name in keys if name != key(4)])
    eviction_harness.turn()
    assert [number for number in range(10) if eviction_harness.eviction._objects.find(key(number)) >= 0] == [
        2,
        3,
        4,
        6,
        7,
        8,
        9,
    ]
    assert eviction_harness.eviction.status()["known_bytes"] == 7 * OBJECT
    assert not eviction_harness.eviction._leaving


def test_what_an_operator_deletes_at_the_same_time_is_counted_once(
    open_harness: Callable[..., EvictionHarness],
) -> None:
    eviction_harness = open_harness()
    eviction_harness.store(*range(85))
    doomed = eviction_harness.deletes()
    spared = next(number for number in range(85) if number not in doomed)
    keys = [key(doomed[0]), key(spared)]
    eviction_harness.eviction.deleting(keys)
    eviction_harness.eviction.deleted(keys, keys)
    eviction_harness.turn()
    assert eviction_harness.eviction._objects.find(key(spared)) < 0
    eviction_harness.delete()
    status = eviction_harness.eviction.status()
    assert (status["evicted"], status["known_objects"]) == (len(doomed), 85 - len(doomed) - 1)


@pytest.mark.parametrize(
    ("capabilities", "missing"),
    [
        (Capability.USAGE, "DELETE"),
        (Capability.DELETE | Capability.DURABLE, "USAGE"),
        (Capability.NONE, "DELETE and USAGE"),
    ],
)
def test_an_adapter_that_cannot_evict_is_refused_with_the_reason(capabilities: Capability, missing: str) -> None:
    harness = EvictionHarness()
    harness.client.capabilities = capabilities
    seat = GuardedPolicy("policy", open_lru(None), harness.clock)
    context = L2EvictionContext(harness.client, seat, harness.clock, harness.events)
    with pytest.raises(ConfigError) as caught:
        open_watermark(WatermarkSettings(eviction_policy="LRU"), context)
    assert str(caught.value) == f"adapter 'cue' cannot evict: it does not declare {missing}; leave out its 'eviction'"


def test_without_settings_of_its_own_an_eviction_has_the_shares_of_l1() -> None:
    settings = WatermarkSettings(eviction_policy="LRU", trigger_watermark=0.9)
    assert (settings.trigger_watermark, settings.eviction_ratio) == (0.9, 0.2)
