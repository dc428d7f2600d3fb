"""Processes that the harness starts are stopped, killed and accounted for."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.child_process import ChildError, ChildProcess

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
PARENT = (
    "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    "print(child.pid, flush=True); child.wait()"
)

LISTENER = """
import os, socket, time
listener = socket.create_server(("127.0.0.1", 0))
if os.fork():
    time.sleep(60)
memory = bytearray(1 << 29)  # which takes the kernel a while to take back
print(listener.getsockname()[1], flush=True)
time.sleep(60)
"""


@pytest.fixture
def children() -> Iterator[list[ChildProcess]]:
    """Those that a test starts; whatever is left of them is killed."""
    started: list[ChildProcess] = []
    yield started
    for child in started:
        child.kill()


def python(code: str, log_path: Path, children: list[ChildProcess]) -> ChildProcess:
    child = ChildProcess("child", [sys.executable, "-c", code], log_path, os.environ)
    children.append(child)
    return child


def wait_for_text(path: Path, count: int = 1) -> str:
    """The first `count` lines that a child has printed."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if path.exists() and path.read_text().count("\n") >= count:
            return path.read_text()
        time.sleep(0.01)
    raise TimeoutError(f"{path} has not {count} lines")


def test_stop_returns_the_exit_status(tmp_path: Path, children: list[ChildProcess]) -> None:
    child = python("print('up', flush=True); import time; time.sleep(60)", tmp_path / "log", children)
    child.start()
    wait_for_text(tmp_path / "log")
    assert child.stop(timeout_seconds=30) == -signal.SIGTERM
    assert not child.running


def test_what_a_killed_group_listened_on_is_free(tmp_path: Path, children: list[ChildProcess]) -> None:
    child = python(LISTENER, tmp_path / "log", children)
    child.start()
    port = int(wait_for_text(tmp_path / "log"))
    child.kill()
    socket.create_server(("127.0.0.1", port)).close()


def test_one_that_does_not_stop_is_killed_and_reported(tmp_path: Path, children: list[ChildProcess]) -> None:
    child = python(STUBBORN, tmp_path / "log", children)
    child.start()
    wait_for_text(tmp_path / "log")
    with pytest.raises(ChildError, match=r"still ran(?s:.*)up"):
        child.stop(timeout_seconds=0.2)
    assert not child.running


def test_a_kill_takes_grandchildren_along(tmp_path: Path, children: list[ChildProcess]) -> None:
    child = python(PARENT, tmp_path / "log", children)
    child.start()
    grandchild = int(wait_for_text(tmp_path / "log"))
    child.kill()
    deadline = time.monotonic() + 30
    while is_alive(grandchild):
        assert time.monotonic() < deadline, "the grandchild lives on"
        time.sleep(0.01)


def test_a_new_start_appends_to_the_log(tmp_path: Path, children: list[ChildProcess]) -> None:
    child = python(STUBBORN, tmp_path / "log", children)
    for starts in (1, 2):
        child.start()
        assert wait_for_text(tmp_path / "log", starts) == "up\n" * starts
        child.kill()


def is_alive(pid: int) -> bool:
    """Running, not just waiting to be collected by its parent."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
