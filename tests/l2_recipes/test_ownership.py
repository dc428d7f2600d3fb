"""A directory or a device belongs to one server, and what is not ours stays as it is."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from demo.environment import quiet_environment
from demo.server_process import HOST, LMCACHE, ServerProcess
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_devkit.fake_engine import FakeEngine
from tests.conftest import StartServer
from tests.l2_recipes.places import DEVICE_BYTES, DEVICES, DIRECTORIES, DURABLE, PLACES, Place

CHUNK_TOKENS = 16
CHUNKS = 8
COMMON = ("--l1-size-gb", "0.05", "--chunk-size", str(CHUNK_TOKENS))


def prompt(number: int) -> list[int]:
    return [number, *range(CHUNKS * CHUNK_TOKENS - 1)]


def engine_of(server: ServerProcess) -> FakeEngine:
    return FakeEngine(f"tcp://{HOST}:{server.port}", timeout_seconds=30.0)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"in vain for {what}"
        time.sleep(0.02)


def store_in_l2(server: ServerProcess, engine: FakeEngine, number: int) -> None:
    assert engine.store(prompt(number), f"store-{number}")
    wait_for(lambda: server.status()["store"]["backlog_bytes"] == 0, "what is on its way to L2")
    engine.scheduler.clear()


def read_back(engine: FakeEngine, number: int) -> int:
    """Chunks that were hit, whose bytes are right."""
    request = f"read-{number}"
    hits = engine.lookup(prompt(number), request)
    if hits:
        found = engine.retrieve(prompt(number), request, 0, hits * CHUNK_TOKENS)
        assert found == [engine.content(prompt(number), chunk) for chunk in range(hits)]
    engine.end(request)
    return hits


def refused(place: Place) -> str:
    """What a server says that is not given the place; it must end by itself, as one that lacks a resource or is configured
    for something that is not so."""
    done = subprocess.run(
        [str(LMCACHE), "server", "--host", HOST, "--port", "0", "--no-http", *COMMON, *place.flags],
        env=quiet_environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode in (ExitCode.RESOURCE, ExitCode.USAGE), done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    "name", [name if name in ("fs", "raw_block") else pytest.param(name, marks=pytest.mark.slow) for name in PLACES]
)
def test_a_place_is_one_server_s_until_that_is_gone(name: str, tmp_path: Path, start_server: StartServer) -> None:
    place = PLACES[name](tmp_path)
    first = start_server(*COMMON, "--instance-id", "the-owner", *place.flags)
    with engine_of(first) as engine:
        store_in_l2(first, engine, 1)
        said = refused(place)
        for fact in ("the-owner", f"pid {first.pid}", socket.gethostname(), str(place.path)):
            assert fact in said
        assert read_back(engine, 1) == CHUNKS, "the first one serves on"
        store_in_l2(first, engine, 2)
        assert read_back(engine, 2) == CHUNKS
    first.kill()
    second = start_server(*COMMON, *place.flags)
    with engine_of(second) as engine:
        assert read_back(engine, 2) == (CHUNKS if name in DURABLE else 0)
        store_in_l2(second, engine, 3)
        assert read_back(engine, 3) == CHUNKS
    assert second.stop() == ExitCode.STOPPED


# --- what is not ours


def contents(folder: Path) -> dict[str, str]:
    """Every file and link below, by what is in it."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = f"link to {os.readlink(path)}"
        elif path.is_file():
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@pytest.mark.parametrize("name", DIRECTORIES)
def test_files_of_others_stay_as_they_are(name: str, tmp_path: Path, start_server: StartServer) -> None:
    place = DIRECTORIES[name](tmp_path)
    outside = tmp_path / "outside"
    outside.write_bytes(b"not in the directory at all")
    (place.path / "photos").mkdir(parents=True)
    (place.path / "notes.txt").write_text("mine")
    (place.path / "photos" / "cat.data").write_bytes(random.Random(1).randbytes(5000))
    (place.path / "link").symlink_to(outside)
    before = contents(tmp_path)
    server = start_server(*COMMON, *place.flags)
    with engine_of(server) as engine:
        store_in_l2(server, engine, 1)
        assert read_back(engine, 1) == CHUNKS
    assert server.stop() == ExitCode.STOPPED
    after = contents(tmp_path)
    assert {path: after.get(path) for path in before} == before


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("begins", ["with other bytes", "with zeros"])
def test_a_device_of_others_is_refused_and_stays_as_it_is(name: str, begins: str, tmp_path: Path) -> None:
    """Zeros at the beginning do not make a device empty: partitioned disks and file systems may leave some there."""
    place = DEVICES[name](tmp_path)
    start = 0 if begins == "with other bytes" else 1024
    with place.path.open("r+b") as file:
        file.seek(start)
        file.write(random.Random(2).randbytes((1 << 20) - start))
    before = hashlib.sha256(place.path.read_bytes()).hexdigest()
    assert str(place.path) in refused(place)
    assert hashlib.sha256(place.path.read_bytes()).hexdigest() == before
    assert place.path.stat().st_size == DEVICE_BYTES
