"""A server that keeps no journals: a coordinator lists what its L2 has, at the start and when batches of it are missing."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.server_process import ServerProcess
from lmcache_devkit.fake_engine import FakeEngine
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess

CHUNK_TOKENS = 16
CHUNKS = 7
GIB = 2**30
SECONDS = 30.0


class PostingServer:
    """A real server without a coordinator.  The test posts in its name."""

    def __init__(self, server: ServerProcess, engine: FakeEngine) -> None:
        self.server, self.engine = server, engine

    def store(self, first: int) -> None:
        assert self.engine.store(list(range(first, first + CHUNKS * CHUNK_TOKENS)))

    def listing(self) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{self.server.http_port}/l2/keys"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return list(json.load(answer)["entries"])
        except urllib.error.URLError:  # its engine port is open first
            return []

    def join(self, coordinator: CoordinatorProcess) -> None:
        says = {"instance_id": "posts", "ip": "127.0.0.1", "http_port": self.server.http_port}
        assert coordinator.ask("POST", "/instances", says).status == 200

    def post(self, coordinator: CoordinatorProcess, seq: int, entry: dict[str, Any]) -> None:
        key = {
            "chunk_hash_hex": entry["chunk_hash"],
            "model_name": entry["model_name"],
            "kv_rank": entry["kv_rank"],
            "object_group_id": entry["object_group"],
        }
        event = {"type": "store", "key": key, "bytes": entry["stored_bytes"]}
        body = {"instance_id": "posts", "seq": seq, "events": [event]}
        assert coordinator.ask("POST", "/l2/events", body).body == {"recorded": 1}


@pytest.fixture
def posting(tmp_path: Path) -> Iterator[PostingServer]:
    adapter = {"type": "fs", "base_path": str(tmp_path / "l2")}
    options = ["--l1-size-gb", "0.05", "--chunk-size", str(CHUNK_TOKENS), "--l2-adapter", json.dumps(adapter)]
    with (
        ServerProcess(options, tmp_path / "server.log") as server,
        FakeEngine(f"tcp://127.0.0.1:{server.port}") as engine,
    ):
        yield PostingServer(server, engine)


def wait_for_listing(posting: PostingServer, objects: int) -> int:
    """Its bytes."""
    until = time.monotonic() + SECONDS
    while len(entries := posting.listing()) != objects:
        assert time.monotonic() < until, entries
        time.sleep(0.05)
    return sum(entry["stored_bytes"] for entry in entries)


def wait_for_usage(coordinator: CoordinatorProcess, expected: int) -> None:
    until = time.monotonic() + SECONDS
    while (used := round(coordinator.ask("GET", "/l2/status").body["total_gb"] * GIB)) != expected:
        assert time.monotonic() < until, (used, expected)
        time.sleep(0.05)


def test_its_l2_is_listed_at_the_start_and_after_a_gap(posting: PostingServer, tmp_path: Path) -> None:
    posting.store(0)
    size = wait_for_listing(posting, CHUNKS)
    with CoordinatorProcess(tmp_path, "--resync-poll-interval", "0.1", "--resync-page-size", "3") as coordinator:
        posting.join(coordinator)
        wait_for_usage(coordinator, size)
        posting.store(1000)
        more = wait_for_listing(posting, 2 * CHUNKS)
        first = posting.listing()[0]
        posting.post(coordinator, 1, first)
        posting.post(coordinator, 3, first)
        wait_for_usage(coordinator, more)


def test_none_is_listed_where_that_is_turned_off(posting: PostingServer, tmp_path: Path) -> None:
    posting.store(0)
    wait_for_listing(posting, CHUNKS)
    with CoordinatorProcess(tmp_path, "--resync-poll-interval", "0.1", "--no-enable-startup-resync") as coordinator:
        posting.join(coordinator)
        entry = posting.listing()[0]
        posting.post(coordinator, 1, entry)
        time.sleep(1)
        wait_for_usage(coordinator, entry["stored_bytes"])


def test_a_server_that_cannot_list_is_given_up(posting: PostingServer, tmp_path: Path) -> None:
    posting.store(0)
    wait_for_listing(posting, CHUNKS)
    entry = posting.listing()[0]
    with CoordinatorProcess(tmp_path, "--resync-poll-interval", "0.1") as coordinator:
        posting.server.kill()
        posting.join(coordinator)
        until = time.monotonic() + SECONDS
        while b"did not list shared L2" not in coordinator.log.read_bytes():
            assert time.monotonic() < until
            time.sleep(0.05)
        posting.post(coordinator, 1, entry)
        wait_for_usage(coordinator, entry["stored_bytes"])
