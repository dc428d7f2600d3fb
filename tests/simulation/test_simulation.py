"""The simulation finds nothing, finds what it must when a fix is taken out, and does the same thing again for one seed.

The seeds of the long run follow from the day, so that each night runs others; `LMCACHE_SIMULATION_SEED` chooses the first.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from typing import Final

import pytest

STEPS: Final = 20_000
NIGHTLY_STEPS: Final = 1_000_000
STEPS_PER_SEED: Final = 50_000
SEEDS_MAX: Final = 30
"""As many are tried for a fault that is there."""
DAY_SECONDS: Final = 86_400


def simulate(*arguments: object, seconds: float = 280) -> subprocess.CompletedProcess[str]:
    """In a process of its own: it replaces what threads are."""
    command = [sys.executable, "-m", "tests.simulation", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


def without_wall_time(output: str) -> str:
    return re.sub(r"wall=\S+", "", output)


def test_nothing_is_found_in_20_000_steps() -> None:
    done = simulate("--seed", 1, "--steps", STEPS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"seeds=1 steps={STEPS}" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nothing_is_found_in_a_million_steps() -> None:
    seeds = NIGHTLY_STEPS // STEPS_PER_SEED
    first = int(os.environ.get("LMCACHE_SIMULATION_SEED", int(time.time() / DAY_SECONDS) * seeds))
    done = simulate("--seed", first, "--seeds", seeds, "--steps", STEPS_PER_SEED, seconds=3500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"seeds={seeds} steps={NIGHTLY_STEPS}" in done.stdout


@pytest.mark.slow
def test_a_seed_is_one_run() -> None:
    once, again, other = (simulate("--seed", seed, "--steps", 5000).stdout for seed in (4, 4, 5))
    assert without_wall_time(once) == without_wall_time(again)
    assert "trace=" in once
    assert re.findall(r"trace=\S+", once) != re.findall(r"trace=\S+", other)


@pytest.mark.parametrize(
    ("fix", "finding"),
    [
        (
            "one-writer",
            r"given to ((?:stock|pair)-\S+) \(store of .*\) to be written while \1 \(store of .*\) may write",
        ),
        pytest.param("quarantine", r"while (stock|node|pair)-\S+ \(.*\) may write it", marks=pytest.mark.slow),
        pytest.param(
            "fence", r"load of \S+ by node-\d+ (has the bytes of another|counts what)", marks=pytest.mark.slow
        ),
        pytest.param("announced-fence", r"while (stock|pair)-\S+ \(retrieve of .*\) reads it", marks=pytest.mark.slow),
        pytest.param("standstill", r"is dropped, although it has pinged without a gap", marks=pytest.mark.slow),
        pytest.param("own-reads", r"while (stock|pair)-\S+ \(retrieve of .*\) reads it", marks=pytest.mark.slow),
        pytest.param("waiting-answers", r"are not answered after", marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(900)
def test_a_fix_that_is_taken_out_is_missed(fix: str, finding: str) -> None:
    for seed in range(SEEDS_MAX):
        done = simulate("--seed", seed, "--steps", STEPS, "--without", fix)
        if done.returncode and re.search(finding, done.stdout):
            assert f"again: python -m tests.simulation --seed {seed} --steps {STEPS} --without {fix}" in done.stdout
            return
    pytest.fail(f"{SEEDS_MAX} seeds of {STEPS} steps have not found that '{fix}' is missing")
