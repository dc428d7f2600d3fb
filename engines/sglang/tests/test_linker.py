"""The linker without an engine, in SGLang's environment: `linker_checks`, one test for each of its checks."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from demo.server_process import ServerProcess
from demo.sglang_process import SGLANG_PYTHON, sglang_environment

CHECKS = Path(__file__).with_name("linker_checks.py")
NAMES = re.findall(r"^def (check_\w+)", CHECKS.read_text(), re.MULTILINE)

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not SGLANG_PYTHON.exists(), reason="no SGLang here: run `make setup-sglang`"),
]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with ServerProcess(["--l1-size-gb", "0.1"], tmp_path_factory.mktemp("linker") / "server.log") as server:
        ran = subprocess.run(
            [str(SGLANG_PYTHON), str(CHECKS), str(server.port), str(server.pid), str(server.http_port)],
            env=sglang_environment() | {"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=500,
        )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found | {"log": ran.stderr}


@pytest.mark.parametrize("name", NAMES)
def test_linker(name: str, said: dict[str, Any]) -> None:
    assert said[name] == ""


def test_a_load_that_failed_is_logged_by_its_request(said: dict[str, Any]) -> None:
    assert "a load failed requests=['frozen']" in said["log"]
    assert "failed_loads=1" in said["log"]
