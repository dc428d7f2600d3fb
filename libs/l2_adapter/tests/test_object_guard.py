from __future__ import annotations

from threading import Event

from lmcache_core import Outcome
from lmcache_l2_adapter.object_verbs import QUARANTINED_MAX, ObjectGuard


def waiting(guard: ObjectGuard, object_id: bytes = b"a") -> Event:
    turn = guard.begin_change(object_id, Event)
    assert turn is not None
    return turn


def test_turns_come_in_the_order_of_asking_and_one_at_a_time() -> None:
    guard = ObjectGuard()
    assert guard.begin_change(b"a", Event) is None
    turns = [waiting(guard) for _ in range(3)]
    assert guard.begin_change(b"b", Event) is None
    for number in range(3):
        assert [turn.is_set() for turn in turns] == [True] * number + [False] * (3 - number)
        guard.end_change(b"a")
    guard.end_change(b"a")
    assert guard.begin_change(b"a", Event) is None


def test_a_cancelled_waiter_is_left_out() -> None:
    guard = ObjectGuard()
    guard.begin_change(b"a", Event)
    first, second, third = (waiting(guard) for _ in range(3))
    guard.leave_queue(b"a", second)
    guard.end_change(b"a")
    guard.leave_queue(b"a", first)  # too late: it was its turn, which passes on
    assert third.is_set()
    assert not second.is_set()
    guard.end_change(b"a")
    assert guard.begin_change(b"a", Event) is None


def test_a_removal_ends_with_its_change() -> None:
    guard = ObjectGuard()
    guard.begin_change(b"a", Event)
    next_one = waiting(guard)
    assert guard.begin_removal(b"a")
    assert not guard.pin(b"a")
    guard.end_change(b"a")
    assert next_one.is_set()
    assert guard.pin(b"a")
    assert not guard.begin_removal(b"a")
    assert guard.pin(b"a")


def test_a_bounded_number_of_quarantined_objects_is_remembered() -> None:
    guard = ObjectGuard()
    for number in range(QUARANTINED_MAX + 1):
        assert guard.quarantine(number.to_bytes(4, "big"), Outcome.DAMAGED)
    assert not guard.is_quarantined((0).to_bytes(4, "big"))
    assert not guard.quarantine((1).to_bytes(4, "big"), Outcome.DAMAGED)


def test_one_task_at_a_time_discards_what_was_quarantined() -> None:
    guard = ObjectGuard()
    assert guard.reason(b"a") is None
    assert guard.quarantine(b"a", Outcome.DAMAGED)
    assert not guard.quarantine(b"a", Outcome.FOREIGN)
    assert guard.reason(b"a") is Outcome.FOREIGN  # as it was found last
    guard.end_discard(b"a")
    assert guard.is_quarantined(b"a")
    assert guard.quarantine(b"a", Outcome.DAMAGED)
    guard.clear(b"a")
    guard.end_discard(b"a")
    assert guard.reason(b"a") is None
    assert guard.pin(b"a")
