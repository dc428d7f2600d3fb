"""The measurement of subscribers works, whatever the subscribers do."""

from __future__ import annotations

from pathlib import Path

from benchmarks.bad_observers import FAULTY, Hangs, Idle
from benchmarks.observers import FIGURES, installed, publish_us, requests


def test_requests_are_answered_beside_subscribers_that_hang_raise_and_keep(tmp_path: Path) -> None:
    with installed(tmp_path):
        figures = requests(FAULTY, tmp_path, scale=0.02)
    assert set(figures) == set(FIGURES)
    assert all(value > 0 for value in figures.values())
    log = (tmp_path / "server.log").read_text()
    assert "subscriber failed subscriber=raises" in log
    assert "names=hangs" in log


def test_a_publish_is_measured() -> None:
    assert publish_us({"one": Idle(), "other": Hangs()}, rounds=1) > 0
