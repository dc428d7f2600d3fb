"""What a real server logs is one record per line, whatever engines call their models."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from demo.server_process import ServerProcess
from lmcache_devkit import FakeEngine

FORGED = "2026-01-01 00:00:00,000 ERROR lmcache_core: forged"
HOSTILE = f'model\n{FORGED}\r\n{{"level": "ERROR"}}\x1b[31m\u2028'
FLAGS = ["--l1-size-gb", "0.05", "--prometheus-port", "0", "--log-level", "DEBUG"]


@pytest.mark.parametrize("style", ["json", "text"])
def test_names_write_no_lines_of_their_own(style: str, tmp_path: Path) -> None:
    with ServerProcess([*FLAGS, "--log-style", style], tmp_path / "log") as server:
        with FakeEngine(f"tcp://127.0.0.1:{server.port}", model=HOSTILE, salt="") as engine:
            engine.lookup(range(300), HOSTILE)
            engine.worker.unregister_engine_driven(engine.instance_id)
        server.status()
    lines = server.log.splitlines()
    assert any("worker registered" in line for line in lines)
    assert "\x1b" not in server.log
    if style == "json":
        records = [json.loads(line) for line in lines]
        assert all(record.keys() >= {"ts", "level", "logger", "message", "thread"} for record in records)
        assert any(HOSTILE in record["message"] for record in records)
    else:
        assert not any(line.startswith((FORGED, "{")) for line in lines)
        assert all(re.match(r"\d{4}-\d\d-\d\d |  ", line) for line in lines)
