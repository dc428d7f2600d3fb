"""The laws find what they are there to find: each of these faulty adapters breaks the law that names its fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from core.tests.testing.mutants.every_mutant import LAWS
from core.tests.testing.mutants.file_adapter import CAPABILITIES, FileAdapter
from lmcache_core import Capability

ROOT = Path(__file__).parents[3]
LAWS_FILE = "core/tests/testing/mutants/laws_of_mutants.py"
REFERENCE = "TestFileAdapter"
PROCESSES = 3


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Every mutant under its one law, and what they were made from under all of those, in a few processes at once: most of
    the time is waiting for what a mutant does not do."""
    wanted = [f"{LAWS_FILE}::Test{mutant.__name__}::{law}" for mutant, law in LAWS.items()]
    wanted += [f"{LAWS_FILE}::{REFERENCE}::{law}" for law in sorted(set(LAWS.values()))]
    files = [tmp_path_factory.mktemp("mutants") / "report.json" for _ in range(PROCESSES)]
    with ThreadPoolExecutor(PROCESSES) as threads:
        parts = list(threads.map(run, files, [wanted[part::PROCESSES] for part in range(PROCESSES)]))
    return {outcome: [name for part in parts for name in part[outcome]] for outcome in ("passed", "failed")}


def run(file: Path, wanted: Sequence[str]) -> Mapping[str, Any]:
    plugin = ["-p", "lmcache_core.testing.pytest_plugin", "-p", "no:cacheprovider", "-c", os.devnull]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, "--rootdir", str(ROOT), "-q", "--tb=no", f"--lmcache-report={file}",
         "-W", "ignore", *wanted],
        cwd=ROOT, capture_output=True, text=True, timeout=280,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout[-3000:] + done.stderr[-3000:]
    report: Mapping[str, Any] = json.loads(file.read_text())
    return report


@pytest.mark.parametrize("mutant", LAWS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_killed_by_its_law_and_what_it_was_made_from_is_not(
    report: Mapping[str, Any], mutant: type[FileAdapter]
) -> None:
    law = LAWS[mutant]
    assert of(report, "failed", f"Test{mutant.__name__}", law), "the law did not find it"
    assert of(report, "failed", REFERENCE, law) == []
    if mutant.capabilities & ~CAPABILITIES == Capability.NONE:  # else the law is not asked of what it was made from
        assert of(report, "passed", REFERENCE, law)


def of(report: Mapping[str, Any], outcome: str, suite: str, law: str) -> list[str]:
    return [name for name in report[outcome] if f"::{suite}::{law}" in name]
