"""The simulation finds nothing, finds what it must when a fix is taken out, and does the same thing again for one seed."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Final

import pytest

SEEDS_MAX: Final = 20
"""So many are tried for a fault that is there."""


def simulate(*arguments: object, seconds: float = 280) -> str:
    """In a process of its own: it replaces what threads are."""
    command = [sys.executable, "-m", "tests.simulation", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False).stdout


def without_wall_time(output: str) -> str:
    return re.sub(r"wall=\S+", "", output)


def test_a_seed_is_one_run() -> None:
    once, again, other = (simulate("--seed", seed, "--steps", 6000) for seed in (4, 4, 5))
    assert without_wall_time(once) == without_wall_time(again)
    assert "trace=" in once
    assert re.findall(r"trace=\S+", once) != re.findall(r"trace=\S+", other)


@pytest.mark.parametrize(
    ("fix", "finding"),
    [
        ("one-writer", r"given to (stock-\d+) \(store of .*\) to be written while \1 \(store of .*\) may write it"),
        ("own-reads", r"to be written while (stock-\d+) \(retrieve of .*\) reads it"),
        ("waiting-answers", r"are not answered after"),
    ],
)
def test_a_fix_that_is_taken_out_is_missed(fix: str, finding: str) -> None:
    for seed in range(SEEDS_MAX):
        if re.search(finding, simulate("--seed", seed, "--steps", 20_000, "--without", fix)):
            return
    pytest.fail(f"{SEEDS_MAX} seeds of 20,000 steps have not found that '{fix}' is missing")
