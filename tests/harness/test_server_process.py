"""The handle of a server: ready means that the engine port answers."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.error import URLError

import pytest

from demo.child_process import ChildError
from demo.server_process import ServerProcess
from tests.conftest import StartServer


def test_it_answers_until_it_is_killed_and_again_on_the_same_port(start_server: StartServer) -> None:
    server = start_server("--l1-size-gb", "0.1")
    port = server.port
    assert server.answers_ping(timeout_seconds=10)
    server.kill()
    assert not server.running
    assert not server.answers_ping(timeout_seconds=0.2)
    with pytest.raises(URLError) as refused:
        server.status()
    assert "engine port is open" in "".join(refused.value.__notes__), "the end of its log"
    server.start()
    assert server.port == port
    assert server.answers_ping(timeout_seconds=10)
    assert server.status()["healthy"] is True
    assert server.stop() == 0


def test_one_that_ends_at_once_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    server = ServerProcess(["--no-such-flag"], tmp_path / "log")
    with pytest.raises(ChildError, match=r"ended before it answered(?s:.*)no-such-flag"):
        server.start()


def test_one_that_never_answers_is_killed(tmp_path: Path) -> None:
    sleeper = tmp_path / "sleeper"
    sleeper.write_text(f"#!{sys.executable}\nimport time; time.sleep(60)\n")
    sleeper.chmod(0o755)
    server = ServerProcess([], tmp_path / "log", executable=sleeper)
    with pytest.raises(ChildError, match="did not answer within"):
        server.start(timeout_seconds=0.5)
    assert not server.running
