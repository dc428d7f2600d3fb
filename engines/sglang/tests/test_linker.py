"""The linker without an engine: `linker_checks`, one test for each of its checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from demo.server_process import ServerProcess
from engines.sglang.tests.check_programs import MARKS, names_of, results_of

pytestmark = MARKS

PROGRAM: Final = Path(__file__).with_name("linker_checks.py")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with ServerProcess(["--l1-size-gb", "0.1"], tmp_path_factory.mktemp("linker") / "server.log") as server:
        return results_of(PROGRAM, server)


@pytest.mark.parametrize("name", names_of(PROGRAM))
def test_linker(name: str, said: dict[str, Any]) -> None:
    assert said[name] == ""


def test_a_load_that_failed_is_logged_by_its_request(said: dict[str, Any]) -> None:
    assert "a load failed requests=['frozen']" in said["log"]
    assert "failed_loads=1" in said["log"]
