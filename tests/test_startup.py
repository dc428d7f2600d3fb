"""Starting is cheap because of what is not imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from demo.child_process import ChildError
from demo.environment import core_environment
from demo.server_process import HOST, ServerProcess
from lmcache_devkit import free_port
from tests.conftest import StartServer

NEVER = ("torch", "opentelemetry.sdk", "numpy", "boto3", "pandas", "rich", "shtab", "pytest", "hypothesis")
"""Nothing that core or the fs adapter does needs any of these."""
NOT_BEFORE_THE_PORT = ("litestar", "uvicorn", "yaml", "asyncio", "pydantic_settings")


def imported_until_open(log: str) -> tuple[set[str], set[str]]:
    """Modules that were imported before the engine port was open, and those that were at any time."""
    early: set[str] = set()
    ever: set[str] = set()
    is_open = False
    for line in log.splitlines():
        is_open = is_open or "engine port is open" in line
        if line.startswith("import time:"):
            module = line.rsplit("|", 1)[1].strip()
            ever.add(module)
            if not is_open:
                early.add(module)
    return early, ever


def test_what_is_imported_and_when(tmp_path: Path) -> None:
    port, http_port = free_port(), free_port()
    adapter = json.dumps({"type": "fs", "base_path": str(tmp_path / "l2")})
    options = [
        "--host",
        HOST,
        "--port",
        str(port),
        "--http-port",
        str(http_port),
        "--l1-size-gb",
        "0.1",
        "--l2-adapter",
        adapter,
        "--prometheus-port",
        "0",
    ]
    command = [sys.executable, "-X", "importtime", "-m", "lmcache_core", "server", *options]
    with (tmp_path / "log").open("wb") as log:
        # without a variable that gives a setting, which would bring pydantic-settings and with it an event loop
        child = subprocess.Popen(command, stdout=log, stderr=log, env=core_environment())
    probe = ServerProcess([], tmp_path / "unused")
    probe.port, probe.http_port = port, http_port
    try:
        while not probe.answers_ping(timeout_seconds=0.5):
            assert child.poll() is None, (tmp_path / "log").read_text()
        assert probe.status()["healthy"]
    finally:
        child.terminate()
        assert child.wait(30) == 0
    early, ever = imported_until_open((tmp_path / "log").read_text())
    assert "zmq" in early
    assert "litestar" in ever, "the admin API did not come up, so this test shows nothing"
    assert not ever & set(NEVER)
    assert not early & set(NOT_BEFORE_THE_PORT)


def test_memory_that_is_not_available_stops_the_start(tmp_path: Path) -> None:
    server = ServerProcess(["--l1-size-gb", "1000000"], tmp_path / "log")
    with pytest.raises(ChildError, match="lower l1_size_gb"):
        server.start()


@pytest.mark.parametrize(
    ("option", "line"),
    [
        (["--l1-size-gb", "200", "--l1-overcommit"], "l1 is not shared memory"),
        (["--l1-size-gb", "200", "--l1-overcommit"], "as --l1-overcommit allows"),
        (["--host", "0.0.0.0"], "0.0.0.0"),
    ],
)
def test_what_is_unwise_starts_with_a_warning(start_server: StartServer, option: list[str], line: str) -> None:
    server = start_server("--chunk-size", "32", *option)
    assert server.logs(line), server.log
    assert server.stop() == 0


def test_the_parts_of_a_server_need_no_event_loop() -> None:
    """Adapters that are written with coroutines, the HTTP API and pydantic-settings import asyncio; the parts do not."""
    parts = ", ".join(f"lmcache_core.{part}" for part in ("app.build", "app.commands.server", "builtin.memory_l2"))
    script = f"import sys, {parts}; sys.exit('asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
