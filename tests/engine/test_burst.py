"""An unmodified client that asks faster than it reads gets every answer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from demo.engine_process import ENGINE_PYTHON
from demo.environment import quiet_environment
from tests.conftest import StartServer

pytestmark = pytest.mark.engine

DRIVER = Path(__file__).with_name("burst_driver.py")


@pytest.mark.parametrize("burst", [8_000, pytest.param(29_130, marks=pytest.mark.slow)])
def test_no_answer_of_a_burst_is_lost(start_server: StartServer, burst: int) -> None:
    """Both are more than libzmq and the kernel hold for one connection."""
    server = start_server("--l1-size-gb", "0.0625", "--no-http")
    command = [str(ENGINE_PYTHON), str(DRIVER), "--url", f"tcp://127.0.0.1:{server.port}", "--requests", str(burst)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=quiet_environment())
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == burst, server.log
    assert "connection closed" not in server.log
