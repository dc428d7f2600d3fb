"""A whole run: subjects in turns, figures by round, and a subject that fails costs its own figures only."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.__main__ import run
from benchmarks.catalogue import ROW_NAMES, TABLES
from benchmarks.peer import BenchmarkError
from benchmarks.process import Process
from benchmarks.subjects import Subject, available
from benchmarks.tables import summary

ECHO = next(subject for subject in available() if subject.is_echo)


def refuse(folder: Path, l1_gb: float) -> Process:
    raise BenchmarkError("it does not start")


def options(*names: str) -> Namespace:
    return Namespace(only=list(names), rounds=2, scale=0.01, keys=1000)


@pytest.mark.slow
def test_each_round_asks_all(capsys: pytest.CaptureFixture[str]) -> None:
    other = Subject("pure", "an echo, too", ECHO.make)
    results = run(options("noop", "l1"), [ECHO])
    assert results.what == "noop-l1"
    assert set(results.samples["noop_p50_us"]["echo"]) == {"0", "1"}
    assert not any(name.startswith("l1_") for name in results.samples), "an echo has no L1"
    assert run(options("noop"), [ECHO, other]).samples["noop_p50_us"].keys() == {"echo", "pure"}
    order = [line.split()[-1] for line in capsys.readouterr().out.splitlines() if "round" in line]
    assert order == ["echo", "echo", "echo", "pure", "pure", "echo"], "the order changes"


def test_one_that_does_not_start_is_named_and_the_others_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    results = run(options("noop"), [Subject("public", "broken", refuse), ECHO])
    assert results.failures == ["round 0, public: it does not start", "round 1, public: it does not start"]
    assert "public failed: it does not start" in capsys.readouterr().err
    assert "| noop, p50, us |" in summary(results, TABLES)


def test_all_rows_make_a_complete_run() -> None:
    assert run(Namespace(only=list(ROW_NAMES), rounds=0, scale=1.0, keys=1), [ECHO]).what == "all"
