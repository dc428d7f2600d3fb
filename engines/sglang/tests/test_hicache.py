"""HiCache's storage without an engine, in SGLang's environment: `hicache_checks`, one test for each of its checks."""

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

CHECKS = Path(__file__).with_name("hicache_checks.py")
NAMES = re.findall(r"^def (check_\w+)", CHECKS.read_text(), re.MULTILINE)

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not SGLANG_PYTHON.exists(), reason="no SGLang here: run `make setup-sglang`"),
]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("hicache")
    options = ["--l1-size-gb", "0.125", "--l2-adapter", json.dumps({"type": "fs", "base_path": str(folder / "l2")})]
    server = ServerProcess(options, folder / "server.log")
    server.start()
    try:
        ran = subprocess.run(
            [str(SGLANG_PYTHON), str(CHECKS), str(server.port), str(server.http_port), str(server.pid)],
            env=sglang_environment() | {"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=500,
        )
    finally:
        server.kill()
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found | {"log": ran.stderr}


@pytest.mark.parametrize("name", NAMES)
def test_hicache(name: str, said: dict[str, Any]) -> None:
    assert said[name] == ""


def test_what_was_lost_is_logged(said: dict[str, Any]) -> None:
    assert "4 pages were not loaded error=" in said["log"]
    assert "4 pages were not stored error=" in said["log"]
    assert "HiCacheNode cleared nothing" in said["log"]
