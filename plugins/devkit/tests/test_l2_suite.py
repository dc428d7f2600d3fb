"""How the requirements choose themselves, clean up, and speak to an operator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from lmcache_core import Capability
from lmcache_devkit.checks.check_request import VARIABLE, CheckRequest

ROOT = Path(__file__).parents[3]
CHECKS = ROOT / "plugins/devkit/src/lmcache_devkit/checks"
SUITE = """
from collections.abc import Mapping
from typing import Any
import pytest
from lmcache_core import Capability, Offer
from lmcache_devkit import L2AdapterSuite
from plugins.devkit.tests.mutants.file_adapter import FileAdapter

class Other(FileAdapter):
    capabilities = Capability({capabilities})

class TestOther(L2AdapterSuite):
    offer = Offer("other", "", "test_other:Other", "plugins.devkit.tests.mutants.file_adapter:FileSettings",
                  Capability({capabilities}))
    open_close_rounds = 0
    payload_bytes_max = 0
    wait_seconds = 5

    @pytest.fixture
    def settings(self):
        return {{"root": {root!r}}}
"""


@pytest.fixture
def report_file(tmp_path: Path) -> Path:
    return tmp_path / "report.json"


def run_suite(folder: Path, capabilities: Capability, options: Sequence[str] = ()) -> Mapping[str, Any]:
    """The suite on an adapter that can delete, count, list and last, and declares the given capabilities."""
    text = SUITE.format(capabilities=capabilities.value, root=str(folder / "kv"))
    (folder / "test_other.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "lmcache_devkit.pytest_plugin", "-p", "no:cacheprovider", "-q",
         f"--lmcache-report={folder / 'report.json'}", *options, "test_other.py"],
        cwd=folder, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report: Mapping[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def test_what_works_and_is_not_declared_is_a_warning_and_leftovers_are_reported(tmp_path: Path) -> None:
    report = run_suite(tmp_path, Capability.NONE)
    assert report["failed"] == {}
    warnings = " ".join(report["warned"])
    assert [name for name in Capability.__members__ if f"declare {name}," in warnings] == [
        "DELETE", "USAGE", "LIST", "DURABLE", "SHARED",
    ]  # fmt: skip
    kept = {file.stem for file in (tmp_path / "kv").glob("*.kv")}
    assert len(kept) > 100
    assert kept == {line.split()[-1] for line in report["left_behind"]} & kept
    assert not any("pinned_object" in requirement for requirement in report["passed"])


def test_what_is_declared_and_does_not_hold_is_red(tmp_path: Path) -> None:
    report = run_suite(tmp_path, Capability.VERIFIES, ["-k", "refuses_by_itself or not_stored_is_missing"])
    (requirement,) = report["failed"]
    assert requirement.endswith("::test_what_the_adapter_verifies_it_refuses_by_itself")
    assert len(report["passed"]) == 1


@pytest.mark.slow
def test_a_backend_in_use_is_left_as_it_was(tmp_path: Path) -> None:
    capabilities = Capability.DELETE | Capability.USAGE | Capability.LIST | Capability.DURABLE
    (tmp_path / "kv").mkdir()
    others = {f"{number:032x}.kv": bytes([number]) * 5_000 for number in range(7)}
    for name, data in others.items():
        (tmp_path / "kv" / name).write_bytes(data)
    report = run_suite(tmp_path, capabilities)
    assert report["failed"] == {}
    found = {file.name: file.read_bytes() for file in (tmp_path / "kv").iterdir()}
    left = {f"{line.split()[-1]}.kv" for line in report["left_behind"]}
    assert others.items() <= found.items()
    assert found.keys() - others.keys() == left & found.keys()
    assert len(found.keys() - others.keys()) <= 4, "no more than the foreign objects that it planted"


# --- the check of an installed offer


def check(folder: Path, request: CheckRequest, *options: str) -> subprocess.CompletedProcess[str]:
    """As `lmcache plugins check` runs it."""
    command = ["-p", "lmcache_devkit.pytest_plugin", "-p", "no:cacheprovider", "-c", str(CHECKS / "pytest.ini")]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *command, "-q", "--tb=short", *options, str(CHECKS / f"check_{request.kind}.py")],
        cwd=folder, capture_output=True, text=True, timeout=120,
        env={**os.environ, VARIABLE: request.to_json(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip


def test_an_installed_offer_is_checked_from_any_directory(tmp_path: Path, report_file: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (tmp_path / "conftest.py").write_text("raise SystemExit('not for these tests')\n")
    requirements = "round or missing or byte_for_byte or order_of_the_keys or altered_object_is or exact"
    done = check(tmp_path, CheckRequest("l2_adapter", "memory"), f"--lmcache-report={report_file}", "-k", requirements)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(report_file.read_text())
    assert len(report["passed"]) > 10
    assert report["failed"] == {}
    assert report["left_behind"] == []
    assert "Left behind" not in done.stdout


@pytest.mark.slow
def test_a_broken_requirement_says_why_and_the_settings_are_not_shown(tmp_path: Path, report_file: Path) -> None:
    secret = {"max_size_gb": 0.00012345678}
    done = check(tmp_path, CheckRequest("l2_adapter", "memory", secret), f"--lmcache-report={report_file}")
    assert done.returncode == 1
    report = json.loads(report_file.read_text())
    (broken,) = (
        name for name in report["failed"] if name.endswith("::test_one_key_that_many_threads_store_is_one_object")
    )
    assert report["failed"][broken].startswith("AssertionError: assert [(<Outcome.RE")
    large = {
        why for name, why in report["skipped"].items() if name.endswith("::test_a_large_payload_comes_back[8388609]")
    }
    assert large == {"Skipped: the backend has room for 132560 bytes, and this needs 8392705"}
    assert "12345678" not in done.stdout + done.stderr + report_file.read_text()


@pytest.mark.parametrize("value", [None, "", "[]", '{"kind": "l2_adapter"}'])
def test_a_check_of_nothing_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(SystemExit, match="lmcache plugins check"):
        CheckRequest.from_environment()


def test_a_check_keeps_its_settings_out_of_what_is_printed() -> None:
    assert "hush" not in repr(CheckRequest("l2_adapter", "memory", {"token": "hush"}))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("eviction_policy", "LRU"), ("store_policy", "default"), ("prefetch_policy", "default"),
        ("request_module", "lookup"), ("subscriber", "log"),
    ],
)  # fmt: skip
def test_there_are_requirement_for_every_kind(tmp_path: Path, kind: str, name: str) -> None:
    done = check(tmp_path, CheckRequest(kind, name), "--collect-only")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"check_{kind}.py::TestOffer::test_" in done.stdout
