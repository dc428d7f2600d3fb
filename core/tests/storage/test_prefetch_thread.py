"""The prefetch thread fails on the way, and is started again: nothing is leaked, and nothing is counted twice."""

from __future__ import annotations

import pytest

from core.tests.storage.house import CHUNKS, House, nothing_is_left, space
from lmcache_core.contracts.storage import Shard
from lmcache_core.controllers.prefetch_request import Prefetch

BOTH = (Shard((space(),)), Shard((space(1),)))


@pytest.mark.parametrize("method", ["_begin", "_looked_up", "_load", "_advance", "_load_answered"])
def test_a_thread_that_trips_leaks_nothing(house: House, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def trip(*arguments: object) -> None:
        raise RuntimeError("injected")

    house.put_in_l2(*CHUNKS)
    monkeypatch.setattr(house.prefetch, method, trip)
    house.ask(*CHUNKS)
    with pytest.raises(RuntimeError, match="injected"):
        house.settle()
    monkeypatch.undo()
    house.prefetch._resume()
    house.settle()
    assert house.answer() == 0
    house.storage.end_lookup(b"c", "r")
    assert nothing_is_left(house)
    house.ask(*CHUNKS, request="next")
    house.settle()
    assert house.answer("next") == 8


def test_a_release_that_trips_the_thread_is_a_release(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def trip(message: object) -> None:
        raise RuntimeError("injected")

    house.put_in_l2(*CHUNKS)
    house.ask(*CHUNKS)
    house.turn()
    house.finish("lookup")
    ((adapter, job),) = house.jobs("load")
    adapter.time_out(job)
    house.turn()
    assert house.health() == (False, 8)
    adapter.let_go(job)
    monkeypatch.setattr(house.prefetch, "_handle", trip)
    with pytest.raises(RuntimeError, match="injected"):
        house.turn()
    assert house.health() == (True, 0)
    house.storage.end_lookup(b"c", "r")
    assert nothing_is_left(house)


def test_slots_are_given_back_when_placing_them_fails(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.put_in_l2(*CHUNKS)
    reserve, calls = house.cache.reserve, []

    def second_time_fails(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 2:
            raise RuntimeError("injected")
        return reserve(*arguments)  # type: ignore[arg-type]

    house.put_in_l2(*CHUNKS, into=space(1))
    house.ask(*CHUNKS, shards=BOTH)
    monkeypatch.setattr(house.cache, "reserve", second_time_fails)
    with pytest.raises(RuntimeError, match="injected"):
        house.settle()
    house.prefetch._resume()
    house.settle()
    house.storage.end_lookup(b"c", "r")
    assert nothing_is_left(house)


@pytest.mark.parametrize("ends", [False, True])
def test_a_waiter_that_raises_costs_nobody_else_the_answer(house: House, ends: bool) -> None:
    """Waiters are functions of request modules, of which some are a stranger's."""
    heard: list[int] = []

    def hear(hits: int) -> bool:
        heard.append(hits)
        return True

    def fail(hits: int) -> bool:
        raise RuntimeError("injected")

    house.put_in_l2(*CHUNKS)
    house.ask(*CHUNKS)
    for waiter in (fail, hear):
        house.storage.on_lookup(b"c", "r", waiter)
    if ends:
        house.storage.end_lookup(b"c", "r")
    house.settle()
    assert heard == [0 if ends else 8]
    house.storage.end_lookup(b"c", "r")
    house.turn()
    assert nothing_is_left(house)


@pytest.mark.parametrize("late", [False, True])
def test_a_load_that_trips_the_thread_after_its_answer_is_counted_once(
    house: House, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Whether the adapter has let go of its buffers by then, or does so afterwards."""

    def trip(*arguments: object) -> None:
        raise RuntimeError("injected")

    house.put_in_l2(*CHUNKS)
    house.ask(*CHUNKS)
    house.turn()
    house.finish("lookup")
    ((adapter, job),) = house.jobs("load")
    if late:
        adapter.finish_and_keep(job)
    else:
        adapter.finish(job)
    monkeypatch.setattr(house.prefetch, "_finish_if_complete", trip)
    with pytest.raises(RuntimeError, match="injected"):
        house.turn()
    monkeypatch.undo()
    house.prefetch._resume()
    if late:
        adapter.let_go(job)
    house.settle()
    assert house.prefetch._loads.jobs == 0
    house.storage.end_lookup(b"c", "r")
    house.turn()
    assert nothing_is_left(house)


def test_what_was_let_go_before_the_thread_trips_is_not_let_go_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second unpin would take away the pin of somebody else."""
    finish = house.prefetch._finish

    def act_and_trip(prefetch: Prefetch) -> None:
        finish(prefetch)
        raise RuntimeError("injected")

    house.put_in_l2(*CHUNKS)
    house.ask(*CHUNKS)
    house.turn()
    house.storage.end_lookup(b"c", "r")
    monkeypatch.setattr(house.prefetch, "_finish", act_and_trip)
    with pytest.raises(RuntimeError, match="injected"):
        house.settle()
    monkeypatch.undo()
    house.prefetch._resume()
    house.settle()
    assert all(set(adapter.pins.values()) <= {0} for adapter in house.adapters)
