"""The soak's verdict, and a short one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.soak.__main__ import soak
from benchmarks.soak.report import draw, load, text
from benchmarks.soak.trend import Trend, trend


def noisy(slope: float, count: int = 240) -> tuple[list[float], list[float]]:
    rng = random.Random(1)
    xs = [float(number) for number in range(count)]
    return xs, [slope * x + rng.gauss(0, 5) for x in xs]


def test_a_leak_is_seen_through_noise() -> None:
    found = trend(*noisy(1.0))
    assert found is not None
    assert found.low < 1.0 < found.high
    assert found.verdict(0.1) == "grows"


def test_noise_is_not_a_leak() -> None:
    found = trend(*noisy(0.0))
    assert found is not None
    assert found.verdict(0.1) == "flat"
    assert found.verdict(0.0) == "undecided"


def test_samples_that_follow_each_other_are_not_taken_for_independent() -> None:
    rng, level, ys = random.Random(2), 0.0, []
    for _ in range(240):
        level += rng.gauss(0, 1)  # a random walk: every neighbour is alike
        ys.append(level)
    found = trend([float(x) for x in range(240)], ys)
    assert found is not None
    assert found.high - found.low > 0.02


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_few_samples_say_nothing(count: int) -> None:
    assert trend(*noisy(1.0, count)) is None


def test_no_requests_say_nothing() -> None:
    assert trend([1.0] * 40, [1.0] * 40) is None


def test_the_interval_holds_the_slope() -> None:
    assert Trend(1.0, 0.5, 1.5).verdict(1.0) == "undecided"


@pytest.mark.slow
def test_a_short_soak_leaves_nothing_behind(tmp_path: Path) -> None:
    done = soak(minutes=1.0, compression=120.0, engines=4, folder=tmp_path)
    assert done.complaints == []
    assert done.tally["chunks read"] > 0
    assert done.tally["deaths"] > 0
    said = load(done.save(tmp_path))
    assert "2.0 hours" in text(said)
    assert [path.name for path in draw(said, tmp_path)] == ["benchmarks-soak-light.svg", "benchmarks-soak-dark.svg"]
