"""One server process for all commands, with a token, an adapter, tenants and an engine that has used it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from demo.environment import quiet_environment
from demo.server_process import HOST, ServerProcess, preloaded
from lmcache_devkit import FakeEngine

TOKEN = "a-token-that-is-never-shown"
Lmcache = Callable[..., "subprocess.CompletedProcess[str]"]


def wait_until_open(port: int) -> None:
    """The admin API comes up a moment after the engine port."""
    for _ in range(1000):
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.01)
    raise AssertionError("the admin API did not open")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    token = folder / "token"
    token.touch(0o600)
    token.write_text(TOKEN + "\n")
    return folder


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[ServerProcess]:
    options = (
        *("--l1-size-gb", "0.0625", "--chunk-size", "16", "--eviction-policy", "IsolatedLRU"),
        *("--quota", '{"tenant-a": 0.03125}', "--http-token-file", str(home / "token"), "--instance-id", "node-7"),
        *("--prometheus-port", "0"),
        *("--l2-adapter", json.dumps({"type": "fs", "base_path": str(home / "l2"), "max_capacity_gb": 1})),
    )
    process = ServerProcess(options, home / "server.log")
    try:
        with process, FakeEngine(f"tcp://{HOST}:{process.port}", model="acme/llama", salt="tenant-a") as engine:
            tokens = list(range(160))
            assert engine.store(tokens, "r1")
            assert engine.lookup(tokens, "r2") == 10
            assert engine.retrieve(tokens, "r2") is not None
            engine.end("r2")
            wait_until_open(process.http_port)
            yield process
    finally:
        process.kill()


@pytest.fixture(scope="module")
def lmcache(server: ServerProcess, home: Path) -> Lmcache:
    """Run the command against that server; `env` adds variables, and `token=False` leaves the token out."""

    def run(*arguments: str, token: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
        known = {"LMCACHE_URL": f"http://{HOST}:{server.http_port}", "LMCACHE_HTTP_TOKEN_FILE": str(home / "token")}
        if not token:
            del known["LMCACHE_HTTP_TOKEN_FILE"]
        command = [sys.executable, "-m", "lmcache_core", *arguments]
        done = preloaded().run(command, {**quiet_environment(), **known, **env})
        assert TOKEN not in done.stdout + done.stderr
        return done

    return run
