"""A backend's speed is measured while it has as much to do as it is given, and at no other time."""

from __future__ import annotations

import pytest

from lmcache_core.controllers.store_queue import Throughput


def test_nothing_is_known_before_enough_has_passed() -> None:
    speed = Throughput(100)
    speed.advance(0.0, saturated=True)
    speed.done(99)
    assert speed.bytes_per_second(1.0) is None
    speed.done(1)
    assert speed.bytes_per_second(1.0) == pytest.approx(100, rel=0.1)


def test_what_trickles_in_says_nothing_about_speed() -> None:
    speed = Throughput(100)
    for second in range(100):
        speed.advance(float(second), saturated=False)
        speed.done(10)
    assert speed.bytes_per_second(100.0) is None


def test_idle_time_does_not_count() -> None:
    speed = Throughput(100)
    speed.advance(0.0, saturated=True)
    speed.advance(1.0, saturated=True)
    speed.done(1000)
    speed.advance(1.0, saturated=False)
    assert speed.bytes_per_second(1000.0) == 1000


def test_a_backend_that_has_stopped_becomes_slower_and_recovers() -> None:
    speed = Throughput(100, half_life_seconds=10)
    speed.advance(0.0, saturated=True)
    for second in range(1, 61):
        speed.advance(float(second), saturated=True)
        speed.done(1000)
    steady = speed.bytes_per_second(60.0)
    assert steady == pytest.approx(1000, rel=0.05)
    stopped = [speed.bytes_per_second(60.0 + seconds) for seconds in (1, 10, 100)]
    assert stopped == sorted(stopped, reverse=True)  # type: ignore[type-var]
    assert stopped[-1] is not None
    assert stopped[-1] < 10
    for second in range(61, 161):
        speed.advance(float(second), saturated=True)
        speed.done(3000)
    assert speed.bytes_per_second(160.0) == pytest.approx(3000, rel=0.05)
