"""What is remembered, how long, and how much of it."""

from __future__ import annotations

import math

from lmcache_core import HashChain, KeySpace, ObjectKey
from lmcache_devkit.fake_clock import FakeClock
from lmcache_object_remote import ABSENT, KnownObjects, Sight

SPACE = KeySpace("model", 0, 0, "", 256, HashChain.BLAKE3, bytes(16))
A, B, C = (ObjectKey(SPACE, bytes([number]) * 32) for number in range(3))


def known(clock: FakeClock, *, entries_max: int = 100, present: float = 60, absent: float = 1) -> KnownObjects:
    return KnownObjects(clock, entries_max=entries_max, present_seconds=present, absent_seconds=absent)


def test_answers_are_kept_for_their_own_time() -> None:
    clock = FakeClock()
    objects = known(clock)
    assert objects.look(A) is None
    objects.present(A, 5)
    objects.absent(B)
    clock.advance(0.9)
    assert objects.look(A) == Sight(True, 5)
    assert objects.look(B) == ABSENT
    clock.advance(0.2)
    assert objects.look(A) == Sight(True, 5)
    assert objects.look(B) is None
    clock.advance(60)
    assert objects.look(A) is None
    assert len(objects) == 0


def test_the_newer_answer_holds() -> None:
    objects = known(FakeClock())
    objects.absent(A)
    objects.present(A, 7)
    assert objects.look(A) == Sight(True, 7)
    objects.absent(A)
    assert objects.look(A) == ABSENT
    objects.forget(A)
    assert objects.look(A) is None


def test_the_least_recently_used_make_room() -> None:
    objects = known(FakeClock(), entries_max=2)
    objects.present(A)
    objects.present(B)
    objects.look(A)
    objects.present(C)
    assert objects.look(B) is None
    assert objects.look(A) is not None
    assert objects.look(C) is not None


def test_zero_seconds_remember_nothing_and_endless_ones_do_not_end() -> None:
    clock = FakeClock()
    objects = known(clock, present=math.inf, absent=0)
    objects.present(A)
    objects.absent(B)
    clock.advance(1e9)
    assert objects.look(A) is not None
    assert objects.look(B) is None


def test_an_answer_that_is_not_to_be_kept_replaces_the_older_one() -> None:
    objects = known(FakeClock(), absent=0)
    objects.present(A)
    objects.absent(A)
    assert objects.look(A) is None
