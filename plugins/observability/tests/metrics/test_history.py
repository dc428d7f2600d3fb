"""Curves of key figures, from samples."""

from __future__ import annotations

import time

import pytest

from lmcache_core import Sample
from lmcache_observability.metrics import history
from lmcache_observability.metrics.ceiling import ALL, Ceiling
from lmcache_observability.metrics.history import ACTUAL, CEILING, FIGURES, History, Moment
from lmcache_observability.samples.catalogue import SAMPLE_KINDS


def at(moment: Moment, name: str) -> float | None:
    return dict(zip([figure.name for figure in FIGURES], moment.figures, strict=True))[name]


def samples(scale: float) -> list[Sample]:
    return [
        Sample("lmcache_mp.lookups", 10 * scale, ("m", "a")),
        Sample("lmcache_mp.lookups", 30 * scale, ("m", "b")),
        Sample("lmcache_mp.lookup_requested", 1000 * scale, ("m", "a")),
        Sample("lmcache_mp.lookup_hit", 250 * scale, ("m", "a")),
        Sample("lmcache.l1.io", 64 * scale, ("m", "a", "write")),
        Sample("lmcache.l1.io", 32 * scale, ("m", "a", "read")),
        Sample("lmcache_mp.l1_usage_ratio", 0.5, ("_default", "shared_memory")),
        Sample("lmcache.l2.store.oldest_age", 3.0, ("x",)),
        Sample("lmcache.l2.store.oldest_age", 7.0, ("y",)),
        Sample("lmcache.requests.waiting", 2, ("pooled",)),
        Sample("lmcache.requests.waiting", 1, ("affine",)),
    ]


def test_figures_are_what_happened_between_two_moments() -> None:
    taken, now = History(), time.time()
    taken.take(now - 8, samples(1), None)
    assert taken.moments() == []
    taken.take(now - 4, samples(3), Ceiling(ALL, "5m", 100, 0.7, 0.8))
    (moment,) = taken.moments()
    assert at(moment, "lookups_per_second") == 20.0
    assert at(moment, "hit_ratio") == 0.25
    assert at(moment, "l1_written_bytes_per_second") == 32.0
    assert at(moment, "l1_read_bytes_per_second") == 16.0
    assert at(moment, "l1_used_ratio") == 0.5
    assert at(moment, "l2_oldest_store_seconds") == 7.0
    assert at(moment, "requests_waiting") == 3.0
    assert (at(moment, "recent_hit_ratio"), at(moment, "recent_hit_ratio_ceiling")) == (0.7, 0.8)
    assert at(moment, "workers") is None


def test_nothing_requested_gives_no_ratio_and_a_stopped_clock_no_sample() -> None:
    taken, now = History(), time.time()
    taken.take(now - 8, samples(1), None)
    taken.take(now - 8, samples(2), None)
    taken.take(now - 4, samples(2), None)
    (moment,) = taken.moments()
    assert at(moment, "hit_ratio") is None
    assert at(moment, "lookups_per_second") == 0.0


def test_only_the_last_hour_is_kept() -> None:
    taken, now = History(), time.time() + 1
    for number in range(800):
        taken.take(now - 5 * (800 - number), samples(number), None)
    assert len(taken.moments()) == 720
    assert len(taken.moments(60.0)) == 12


def test_it_is_made_of_readings_that_there_are() -> None:
    names = {kind.name for kind in SAMPLE_KINDS} | {CEILING, ACTUAL}
    of = {text.partition("{")[0] for figure in FIGURES for text in (figure.of, figure.per)} - {"", "second"}
    assert of <= names
    assert len({figure.name for figure in FIGURES}) == len(FIGURES)


def test_its_thread_outlives_a_fault(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(history, "STEP_SECONDS", 0.01)
    taken, faults = History(), [RuntimeError("injected")]

    def read() -> list[Sample]:
        if faults:
            raise faults.pop()
        return samples(time.monotonic())

    taken.start(read, lambda: None)
    deadline = time.monotonic() + 10
    while not taken.moments():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    taken.close()
    assert "no figures for the history" in caplog.text
