"""The prefetch thread fails on the way, and is started again: nothing is leaked, and nothing is counted twice."""

from __future__ import annotations

import pytest

from core.tests.storage.storage_harness import CHUNKS, StorageHarness, nothing_is_left, space
from lmcache_core.contracts.storage import Shard
from lmcache_core.controllers.prefetch_request import Prefetch

BOTH = (Shard((space(),)), Shard((space(1),)))


@pytest.mark.parametrize("method", ["_begin", "_looked_up", "_load", "_advance", "_load_answered"])
def test_a_thread_that_trips_leaks_nothing(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def trip(*arguments: object) -> None:
        raise RuntimeError("injected")

    harness.put_in_l2(*CHUNKS)
    monkeypatch.setattr(harness.prefetch, method, trip)
    harness.ask(*CHUNKS)
    with pytest.raises(RuntimeError, match="injected"):
        harness.settle()
    monkeypatch.undo()
    harness.prefetch._resume()
    harness.settle()
    assert harness.answer() == 0
    harness.storage.end_lookup(b"c", "r")
    assert nothing_is_left(harness)
    harness.ask(*CHUNKS, request="next")
    harness.settle()
    assert harness.answer("next") == 8


def test_a_release_that_trips_the_thread_is_a_release(harness: StorageHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def trip(message: object) -> None:
        raise RuntimeError("injected")

    harness.put_in_l2(*CHUNKS)
    harness.ask(*CHUNKS)
    harness.turn()
    harness.finish("lookup")
    ((adapter, job),) = harness.jobs("load")
    adapter.time_out(job)
    harness.turn()
    assert harness.health() == (False, 8)
    adapter.release_buffers(job)
    monkeypatch.setattr(harness.prefetch, "_handle", trip)
    with pytest.raises(RuntimeError, match="injected"):
        harness.turn()
    assert harness.health() == (True, 0)
    harness.storage.end_lookup(b"c", "r")
    assert nothing_is_left(harness)


def test_slots_are_given_back_when_placing_them_fails(harness: StorageHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.put_in_l2(*CHUNKS)
    reserve, calls = harness.cache.reserve, []

    def second_time_fails(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 2:
            raise RuntimeError("injected")
        return reserve(*arguments)  # type: ignore[arg-type]

    harness.put_in_l2(*CHUNKS, into=space(1))
    harness.ask(*CHUNKS, shards=BOTH)
    monkeypatch.setattr(harness.cache, "reserve", second_time_fails)
    with pytest.raises(RuntimeError, match="injected"):
        harness.settle()
    harness.prefetch._resume()
    harness.settle()
    harness.storage.end_lookup(b"c", "r")
    assert nothing_is_left(harness)


@pytest.mark.parametrize("ends", [False, True])
def test_a_waiter_that_raises_costs_no_other_the_answer(harness: StorageHarness, ends: bool) -> None:
    """Waiters are functions of request modules, of which some are third-party code."""
    heard: list[int] = []

    def hear(hits: int) -> bool:
        heard.append(hits)
        return True

    def fail(hits: int) -> bool:
        raise RuntimeError("injected")

    harness.put_in_l2(*CHUNKS)
    harness.ask(*CHUNKS)
    for waiter in (fail, hear):
        harness.storage.on_lookup(b"c", "r", waiter)
    if ends:
        harness.storage.end_lookup(b"c", "r")
    harness.settle()
    assert heard == [0 if ends else 8]
    harness.storage.end_lookup(b"c", "r")
    harness.turn()
    assert nothing_is_left(harness)


@pytest.mark.parametrize("late", [False, True])
def test_a_load_that_trips_the_thread_after_its_answer_is_counted_once(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Whether the adapter has released its buffers by then, or does so afterwards."""

    def trip(*arguments: object) -> None:
        raise RuntimeError("injected")

    harness.put_in_l2(*CHUNKS)
    harness.ask(*CHUNKS)
    harness.turn()
    harness.finish("lookup")
    ((adapter, job),) = harness.jobs("load")
    if late:
        adapter.finish_and_keep(job)
    else:
        adapter.finish(job)
    monkeypatch.setattr(harness.prefetch, "_finish_if_complete", trip)
    with pytest.raises(RuntimeError, match="injected"):
        harness.turn()
    monkeypatch.undo()
    harness.prefetch._resume()
    if late:
        adapter.release_buffers(job)
    harness.settle()
    assert harness.prefetch._loads.jobs == 0
    harness.storage.end_lookup(b"c", "r")
    harness.turn()
    assert nothing_is_left(harness)


def test_what_was_released_before_the_thread_fails_is_not_released_again(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second unpin would take away the pin of another request."""
    finish = harness.prefetch._finish

    def act_and_trip(prefetch: Prefetch) -> None:
        finish(prefetch)
        raise RuntimeError("injected")

    harness.put_in_l2(*CHUNKS)
    harness.ask(*CHUNKS)
    harness.turn()
    harness.storage.end_lookup(b"c", "r")
    monkeypatch.setattr(harness.prefetch, "_finish", act_and_trip)
    with pytest.raises(RuntimeError, match="injected"):
        harness.settle()
    monkeypatch.undo()
    harness.prefetch._resume()
    harness.settle()
    assert all(set(adapter.pins.values()) <= {0} for adapter in harness.adapters)
