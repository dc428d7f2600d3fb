"""An operator at a server that runs with files behind it: what it holds is listed, brought back, pinned and deleted."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from demo.server_process import LMCACHE, ServerProcess
from lmcache_devkit.fake_engine import FakeEngine
from tests.conftest import StartServer

CHUNKS = 4
A = list(range(CHUNKS * 16))
B = list(range(10_000, 10_000 + CHUNKS * 16))


class Shell:
    """The commands, against one server."""

    def __init__(self, server: ServerProcess) -> None:
        self._url = f"http://127.0.0.1:{server.http_port}"
        server.status()  # which waits until the admin API is there

    def run(self, *arguments: str, tokens: list[int] | None = None) -> subprocess.CompletedProcess[str]:
        given = [] if tokens is None else ["--model", "model", "--tokens", "-"]
        command = [str(LMCACHE), *arguments, *given, "--url", self._url]
        text = None if tokens is None else json.dumps(tokens)
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)

    def json(self, *arguments: str, tokens: list[int] | None = None) -> Any:
        done = self.run(*arguments, "--json", tokens=tokens)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def count(self, tier: str) -> int:
        return len(self.json("keys", "--tier", tier)["entries"])


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it did not come to that")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "objects"


def start(start_server: StartServer, folder: Path) -> ServerProcess:
    backend = json.dumps({"type": "fs", "base_path": str(folder)})
    return start_server("--chunk-size", "16", "--l1-size-gb", "0.0625", "--l2-adapter", backend)


def test_what_an_earlier_server_stored_is_brought_back_before_anybody_asks(
    start_server: StartServer, folder: Path
) -> None:
    first = start(start_server, folder)
    with FakeEngine(f"tcp://127.0.0.1:{first.port}") as engine:
        for tokens in (A, B):
            assert engine.store(tokens)
            engine.end()
        contents = [engine.content(A, chunk) for chunk in range(CHUNKS)]
    shell = Shell(first)
    wait_for(lambda: shell.count("l2") == 2 * CHUNKS)
    assert first.stop() == 0

    second = start(start_server, folder)
    shell = Shell(second)
    assert (shell.count("l1"), shell.count("l2")) == (0, 2 * CHUNKS)
    with FakeEngine(f"tcp://127.0.0.1:{second.port}") as engine:
        brought = shell.json("prefetch", "--pin", "system", tokens=A)
        assert (brought["status"], brought["found_keys"], brought["loaded_keys"], brought["pinned_keys"]) == (
            "completed", CHUNKS, CHUNKS, CHUNKS,
        )  # fmt: skip
        assert shell.run("clear").returncode == 0
        assert {entry["state"] for entry in shell.json("keys")["entries"]} == {"pinned"}
        assert engine.lookup(A) == CHUNKS
        assert engine.retrieve(A) == contents
        engine.end()
        assert second.status()["prefetch"]["loaded"] == CHUNKS, "the lookup had nothing left to load"
        assert shell.json("pins", "list")["pins"][0]["objects"] == CHUNKS
        assert "'system' released 4 objects" in shell.run("pins", "remove", "system").stdout
        added = shell.json("pins", "add", "again", "--ttl", "600", tokens=A)
        assert (added["chunks"], added["total_chunks"]) == (CHUNKS, CHUNKS)
    for options in (("--model", "absent"), ("--salt", "absent"), ("--model", "model", "--limit", "3")):
        listed = shell.json("keys", "--tier", "l2", *options)
        assert len(listed["entries"]) == (3 if "--limit" in options else 0)
        assert listed["complete"] == ("--limit" not in options)
    assert "there are more; --limit 0 lists all of them" in shell.run("keys", "--limit", "1").stdout


def test_mistakes_are_one_line(start_server: StartServer, folder: Path) -> None:
    shell = Shell(start(start_server, folder))
    for arguments, tokens, says in (
        (("prefetch",), A, "no worker of model 'model' with a world size of 1 is registered"),
        (("prefetch", "--ttl", "5"), A, "--ttl is that of a pin: give --pin, too, or leave it out"),
        (("pins", "add", "no good"), A, "field 'name' is 'no good'"),
        (("pins", "remove", "nothing"), None, "there is no pin 'nothing'"),
        (("keys", "--tier", "l2", "--adapter", "s3"), None, "no adapter is called 's3'; there are: fs"),
        (("keys", "--limit", "-1"), None, "--limit -1: expected 0 or more"),
    ):
        done = shell.run(*arguments, tokens=tokens)
        assert done.returncode != 0
        assert says in done.stderr
        assert len(done.stderr.splitlines()) == 1
