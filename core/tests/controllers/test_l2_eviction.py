"""Room in an adapter: what the policy names is deleted, in slices, and nothing that is in use."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from core.tests.controllers.eviction_site import CAPACITY, OBJECT, Site, key
from lmcache_core.contracts.events import ObjectsEvicted
from lmcache_core.contracts.l2_adapter import LoadItem, StoreItem
from lmcache_core.controllers import l2_eviction
from lmcache_core.model.results import Outcome, Usage


def test_beyond_the_watermark_the_oldest_fifth_goes(site: Site) -> None:
    site.store(*range(40))
    site.store(*range(40, 80))
    assert site.deletes() == [], "at the watermark"
    site.look(0, 1)
    site.store(80)
    deleted = site.delete()
    assert deleted == list(range(39, 22, -1)), "a fifth of 81; of what was stored together, the end of the prompt first"
    assert site.there() == set(range(81)) - set(deleted)
    assert site.deletes() == []
    status = site.eviction.status()
    assert (status["evicted"], status["evicted_bytes"], status["known_objects"]) == (17, 17 * OBJECT, 64)
    assert site.events.events == [ObjectsEvicted("cue", 17, 17 * OBJECT, 0.81)]


def test_large_evictions_go_in_slices(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l2_eviction, "SLICE", 5)
    site.store(*range(90))
    assert [len(site.delete()) for _ in range(4)] == [5, 5, 5, 3]
    assert site.deletes() == []


def test_it_goes_on_until_the_watermark_is_kept(site: Site) -> None:
    site.store(*range(100))
    site.delete()
    assert len(site.adapter.objects) == 80
    assert site.deletes() == []
    site.store(*range(100, 140))
    site.delete()
    site.delete()
    assert len(site.adapter.objects) <= 80


def test_a_pinned_object_is_skipped_and_tried_again(site: Site) -> None:
    site.store(*range(90))
    refused = site.delete(Outcome.REJECTED)
    assert site.deletes() == [], "not again at once"
    site.turn()
    assert site.deletes() == []
    site.later()
    assert site.delete() == refused
    assert site.eviction.status()["refused"] == 18
    assert len(site.adapter.objects) == 72


def test_one_that_cannot_be_deleted_keeps_no_other_from_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l2_eviction, "SLICE", 9)
    site.store(*range(90))
    first = site.delete(Outcome.FAILED)
    second = site.delete()
    assert set(first).isdisjoint(second)
    assert site.eviction.status()["failed"] == 9


@pytest.mark.parametrize("verb", ["store", "load"])
def test_what_is_being_stored_or_loaded_is_not_deleted(site: Site, verb: str) -> None:
    site.store(*range(80))
    busy = list(range(70, 80))
    if verb == "store":
        site.client.submit_store([StoreItem(key(n), site.buffer()) for n in busy], site.inbox, None)
    else:
        site.client.submit_load([LoadItem(key(n), site.buffer()) for n in busy], site.inbox, None)
    site.store(80)
    assert site.delete() == [*range(69, 52, -1)]


def test_what_is_stored_again_while_it_is_deleted_stays_known(site: Site) -> None:
    site.store(*range(90))
    doomed = site.deletes()
    job = next(job for job in site.adapter.waiting if job.verb == "delete")
    site.adapter.finish(job)
    site.store(doomed[0])
    assert site.eviction.status()["known_objects"] == len(site.adapter.objects) == 73
    site.store(doomed[1], size=2 * OBJECT)
    assert site.eviction.status()["known_bytes"] == 75 * OBJECT


def test_what_an_adapter_kept_though_it_was_over_time_is_evicted_in_its_turn(site: Site) -> None:
    site.client.submit_store([StoreItem(key(200 + n), site.buffer()) for n in range(10)], site.inbox, None)
    late = site.adapter.waiting[-1]
    site.adapter.time_out(late)
    site.turn()
    site.adapter.objects.update({name.object_id: bytes(OBJECT) for name in late.keys})
    site.store(*range(75))
    assert site.deletes() == [], "the adapter may still write them"
    site.adapter.let_go(late)
    site.turn()
    assert set(site.delete()) >= set(range(200, 210)), "they are the oldest"
    assert site.there() <= set(range(75))


def test_what_was_not_kept_after_all_is_forgotten_when_its_turn_comes(site: Site) -> None:
    site.client.submit_store([StoreItem(key(200 + n), site.buffer()) for n in range(10)], site.inbox, None)
    late = site.adapter.waiting[-1]
    site.adapter.time_out(late)
    site.adapter.let_go(late)
    site.turn()
    site.store(*range(90))
    while site.deletes():
        site.delete()
        site.later()
    assert len(site.adapter.objects) <= 80
    assert site.eviction.status()["gone"] == 10
    assert site.eviction.status()["known_objects"] == len(site.adapter.objects)


def test_an_object_that_changed_its_size_counts_with_the_new_one(site: Site) -> None:
    site.store(1)
    site.store(1, size=3 * OBJECT)
    status = site.eviction.status()
    assert (status["known_objects"], status["known_bytes"]) == (1, 3 * OBJECT)


def test_what_is_gone_already_is_forgotten(site: Site) -> None:
    site.store(*range(90))
    site.adapter.objects = {key(number).object_id: bytes(OBJECT) for number in range(80, 90)}
    site.delete(Outcome.MISSING)
    status = site.eviction.status()
    assert (status["gone"], status["evicted"], status["known_objects"]) == (18, 0, 72)
    assert site.events.events == []


def test_an_adapter_that_does_not_answer_is_asked_for_nothing(site: Site) -> None:
    site.store(*range(90))
    site.clock.advance(31)
    site.client.expire(site.clock.monotonic())
    site.turn()
    site.later(10)
    assert len([job for job in site.adapter.waiting if job.verb == "delete"]) == 1, "the one that is overdue"
    site.adapter.finish(next(job for job in site.adapter.waiting if job.verb == "delete"))
    site.later()
    assert site.eviction.status()["known_objects"] == 90, "its answer came too late"
    site.later()
    assert len(site.adapter.objects) == 72


@pytest.mark.parametrize("capacity", [None, 0, -1])
def test_without_a_capacity_nothing_is_deleted_and_that_is_said_once(
    site: Site, caplog: pytest.LogCaptureFixture, capacity: int | None
) -> None:
    site.adapter.capacity = capacity
    with caplog.at_level(logging.WARNING):
        for number in range(5):
            site.store(number)
            site.later()
    assert site.deletes() == []
    (record,) = caplog.records
    assert "adapter=cue" in record.getMessage()


@pytest.mark.parametrize("stays", [False, True])
def test_usage_that_is_counted_now_and_then_does_not_empty_the_adapter(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stays: bool
) -> None:
    site.store(*range(80))
    monkeypatch.setattr(site.adapter, "usage", lambda: Usage(90 * OBJECT, CAPACITY, 90))
    with caplog.at_level(logging.WARNING):
        site.store(*range(80, 90))
        assert len(site.delete()) == 18
        for _ in range(5):
            site.later()
            assert site.deletes() == [], "nothing of that shows yet"
    (record,) = caplog.records
    assert "adapter=cue" in record.getMessage()
    if stays:  # as much came as was deleted, so the count is right
        site.store(*range(100, 118))
        assert len(site.deletes()) == 18
    else:
        monkeypatch.setattr(site.adapter, "usage", lambda: Usage(85 * OBJECT, CAPACITY, 85))
        site.later()
        assert len(site.deletes()) == 17


def test_a_backend_that_is_down_is_left_alone_for_a_while(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l2_eviction, "SLICE", 2)
    site.store(*range(90))
    for _ in range(4):
        site.delete(Outcome.FAILED)
    site.turn()
    assert site.deletes() == []
    site.later()
    assert len(site.delete()) == 2


def test_an_adapter_that_keeps_a_job_is_given_no_other_slice(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l2_eviction, "SLICE", 5)
    site.store(*range(90))
    overdue = site.deletes()
    site.clock.advance(31)
    site.client.expire(site.clock.monotonic())
    for _ in range(3):
        site.later()
    assert site.deletes() == overdue


def test_usage_that_fails_costs_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Usage | None:
        raise OSError("no")

    monkeypatch.setattr(site.adapter, "usage", fail)
    site.store(*range(5))
    monkeypatch.undo()
    site.store(*range(5, 90))
    assert site.delete()


def test_an_adapter_that_still_learns_what_it_holds_is_waited_for_in_silence(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(site.adapter, "usage", lambda: None)
    with caplog.at_level(logging.WARNING):
        site.store(*range(90))
        site.later()
    assert site.client.is_learning
    assert site.deletes() == []
    assert caplog.records == []
    monkeypatch.undo()
    site.later()
    assert len(site.delete()) == 18


def test_what_an_operator_has_deleted_is_forgotten(open_site: Callable[..., Site]) -> None:
    site = open_site()
    site.store(*range(10))
    keys = [key(number) for number in range(6)]
    site.eviction.deleting(keys)
    site.store(2)  # it has come again before the deletion is told
    site.look(3)  # it was there after the deletion had begun: of another server, perhaps
    site.eviction.deleted(keys, [name for name in keys if name != key(4)])
    site.turn()
    assert [number for number in range(10) if site.eviction._objects.find(key(number)) >= 0] == [2, 3, 4, 6, 7, 8, 9]
    assert site.eviction.status()["known_bytes"] == 7 * OBJECT
    assert not site.eviction._leaving


def test_what_an_operator_deletes_at_the_same_time_is_counted_once(open_site: Callable[..., Site]) -> None:
    site = open_site()
    site.store(*range(85))
    doomed = site.deletes()
    spared = next(number for number in range(85) if number not in doomed)
    keys = [key(doomed[0]), key(spared)]
    site.eviction.deleting(keys)
    site.eviction.deleted(keys, keys)
    site.turn()
    assert site.eviction._objects.find(key(spared)) < 0
    site.delete()
    status = site.eviction.status()
    assert (status["evicted"], status["known_objects"]) == (len(doomed), 85 - len(doomed) - 1)
