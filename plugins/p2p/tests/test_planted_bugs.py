"""Each of these planted bugs is found by the test that is named with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plugins.p2p.tests.planted_bugs import BUGS, VARIABLE, Bug

ROOT = Path(__file__).parents[3]
IN_SHORT = ("no digest is compared", "a member sees the tasks of others")


def parameter(bug: Bug) -> object:
    marks = () if bug.what in IN_SHORT else pytest.mark.slow
    return pytest.param(bug, id=bug.what.replace(" ", "-"), marks=marks)


@pytest.mark.parametrize("bug", [parameter(bug) for bug in BUGS])
def test_a_planted_bug_is_found(bug: Bug) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "--tb=line", "-p", "plugins.p2p.tests.planted_bugs",
         "-p", "no:cacheprovider", "--timeout=60", f"plugins/p2p/tests/{bug.test}"],
        cwd=ROOT, capture_output=True, text=True, timeout=250, check=False,
        env={**os.environ, VARIABLE: bug.what, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    name = bug.test.partition("::")[2].partition("[")[0]
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout[-3000:] + done.stderr[-2000:]
    assert f"FAILED plugins/p2p/tests/{bug.test.partition('::')[0]}::{name}" in done.stdout, done.stdout[-3000:]
