"""HiCache's storage without an engine: `hicache_checks`, one test for each of its checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from demo.server_process import ServerProcess
from engines.sglang.tests.check_programs import MARKS, names_of, results_of

pytestmark = MARKS

PROGRAM: Final = Path(__file__).with_name("hicache_checks.py")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("hicache")
    options = ["--l1-size-gb", "0.125", "--l2-adapter", json.dumps({"type": "fs", "base_path": str(folder / "l2")})]
    server = ServerProcess(options, folder / "server.log")
    server.start()
    try:
        return results_of(PROGRAM, server)
    finally:
        server.kill()  # the last check has killed it


@pytest.mark.parametrize("name", names_of(PROGRAM))
def test_hicache(name: str, said: dict[str, Any]) -> None:
    assert said[name] == ""


def test_what_was_lost_is_logged(said: dict[str, Any]) -> None:
    assert "4 pages were not loaded error=" in said["log"]
    assert "4 pages were not stored error=" in said["log"]
    assert "HiCacheNode cleared nothing" in said["log"]
