"""How bugs are planted: something right, copies of it with one bug each, and for each bug the check that must find it.

Each kind of offer has its own table.  `request_modules.py` is an example: `PLANTED = Planted(...)`, the class that is right,
mutants with `@PLANTED.killed_by("name of the check", "what it must say")`, and last

    globals().update(PLANTED.suites(RequestModuleSuite, __name__))

so that pytest runs the suite against each of them as a plugin's author does.  `test_mutants.py` holds every table."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import pytest

from lmcache_core import Offer

ROOT: Final = Path(__file__).parents[4]
SECONDS_MAX: Final = 60.0
"""In which a bug must be found."""
LATER_SECONDS: Final = 0.05
Mutant = TypeVar("Mutant", bound=type)


class Bug(NamedTuple):
    check: str
    """The test that must fail."""
    says: str
    """A regular expression for the first line of its message."""
    slow: bool
    """Whether `make test` leaves it to `make test-all`."""


class Outcome(NamedTuple):
    """What became of one check of one suite."""

    passed: bool
    reason: str
    """Of a failure; empty for a check that does not apply."""
    seconds: float

    @property
    def failed(self) -> bool:
        return not self.passed and bool(self.reason)


class Planted:
    """The bugs of one kind of offer.  `suites`, called in `file`, makes pytest find them there."""

    def __init__(self, file: str, right: type) -> None:
        self.file = f"plugins/devkit/tests/mutants/{file}"
        self.right = right
        self.bugs: dict[type, Bug] = {}
        self.suite: type = object
        """What `suites` was given."""

    def killed_by(self, check: str, says: str = "", *, slow: bool = False) -> Callable[[Mutant], Mutant]:
        """Plant a bug: the test `test_<check>` must fail for this class, and say so."""

        def plant(mutant: Mutant) -> Mutant:
            self.bugs[mutant] = Bug(f"test_{check}", says, slow)
            return mutant

        return plant

    def suites(self, suite: type, module: str, offer: Callable[[type], Offer] | None = None) -> dict[str, type]:
        """One class of tests for what is right and one for each mutant, by their names.  What is opened is the class
        itself: with the settings, and what else its kind is opened with."""
        self.suite = suite
        offer = offer or self.offer
        return {
            f"Test{each.__name__}": type(f"Test{each.__name__}", (suite,), {"offer": offer(each), "__module__": module})
            for each in (self.right, *self.bugs)
        }

    @staticmethod
    def offer(mutant: type) -> Offer:
        return Offer(mutant.__name__, "planted", f"{mutant.__module__}:{mutant.__name__}")

    def node(self, under_test: type, check: str = "") -> str:
        return f"{self.file}::Test{under_test.__name__}" + (f"::{check}" if check else "")


def run_checks(nodes: Sequence[str], folder: Path, seed: int | None = None) -> dict[str, Outcome]:
    """Run these tests in a process of their own, as authors run them, and say what became of each, by node id."""
    report = folder / "report.json"
    plugins = ["lmcache_devkit.pytest_plugin", "_hypothesis_pytestplugin", "no:cacheprovider"]
    chosen = [] if seed is None else [f"--hypothesis-seed={seed}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *(word for name in plugins for word in ("-p", name)), "-c", os.devnull,
         "--rootdir", str(ROOT), "-q", "--tb=no", f"--lmcache-report={report}", "-W", "ignore", *chosen, *nodes],
        cwd=ROOT, capture_output=True, text=True, timeout=280,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert done.returncode in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), (
        done.stdout[-3000:] + done.stderr[-3000:]
    )
    said: dict[str, Any] = json.loads(report.read_text())
    seconds = said["seconds"]
    found = {name: Outcome(True, "", seconds[name]) for name in said["passed"]}
    found |= {name: Outcome(False, "", seconds[name]) for name in said["skipped"]}
    return found | {name: Outcome(False, reason or "?", seconds[name]) for name, reason in said["failed"].items()}


def outcomes_of(found: dict[str, Outcome], node: str) -> list[Outcome]:
    """Of this test, whatever its parameters."""
    return [outcome for name, outcome in found.items() if name == node or name.startswith(f"{node}[")]


def assert_killed(found: dict[str, Outcome], planted: Planted, mutant: type) -> None:
    """The check that is named failed for the mutant, in time and with the right words, and did not for what is right."""
    check, says, _ = planted.bugs[mutant]
    outcomes = outcomes_of(found, planted.node(mutant, check))
    reasons = [each.reason for each in outcomes if each.failed]
    assert reasons, f"{check} did not find it: {outcomes}"
    assert any(re.search(says, reason) for reason in reasons), f"{check} says {reasons}, not {says!r}"
    assert max(each.seconds for each in outcomes) <= SECONDS_MAX
    of_right = outcomes_of(found, planted.node(planted.right, check))
    assert of_right, f"{check} was not held against {planted.right.__name__}"
    assert [each.reason for each in of_right if each.failed] == []
