"""The soak must not say that all is well when it is not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from benchmarks.l2_soak.engine import Orders, PatternEngine, Tally, work
from benchmarks.l2_soak.recipes import CHUNK_TOKENS
from benchmarks.l2_soak.run import added_up, left_behind
from benchmarks.l2_soak.watch import disk_bytes, sample_of
from demo.server_process import HOST
from lmcache_client.messages import SlotDescriptor
from tests.conftest import StartServer

CHUNK_BYTES = 1 << 15
STATUS: dict[str, Any] = {
    "state": "healthy",
    "healthy": True,
    "lookups_open": 0,
    "l1": {
        "used_bytes": 80, "capacity_bytes": 100, "state_counts_add_up": True, "leases": 0, "held": 0, "quarantined": 0,
    },
    "l2": [
        {
            "usage": {"used_bytes": 60, "capacity_bytes": 90, "objects": 3},
            "eviction": {"evicted_bytes": 20, "known_objects": 3, "known_bytes": 60},
            "faults": 0,
            "timeouts": 0,
        }
    ],
    "store": {"backlog_bytes": 0, "adapters": {"fs": {"failed": 2, "failed_by_outcome": {"rejected": 2}}}},
}  # fmt: skip
"""Of a server that is at rest and well."""


def changed(*path: str | int, value: object) -> dict[str, Any]:
    status = copy.deepcopy(STATUS)
    *way, last = path
    there: Any = status
    for step in way:
        there = there[step]
    there[last] = value
    return status


def test_a_server_that_is_well_is_not_complained_about() -> None:
    assert left_behind(STATUS, on_disk=60) == []
    assert sample_of(STATUS, 1.0).within


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("l1", "leases"), 1, "1 leases"),
        (("l1", "held"), 2, "2 slots held"),
        (("l1", "quarantined"), 3, "3 slots in quarantine"),
        (("lookups_open",), 4, "4 lookups open"),
        (("store", "backlog_bytes"), 5, "5 bytes on their way"),
        (("store", "adapters", "fs", "failed"), 6, "4 stores failed"),
        (("l2", 0, "timeouts"), 7, "7 faults of the adapter"),
        (("l2", 0, "eviction", "known_objects"), 8, "its eviction policy knows"),
        (("l2", 0, "usage"), None, "on the disk"),
    ],
)
def test_what_is_left_behind_is_said(path: tuple[str | int, ...], value: object, says: str) -> None:
    complaints = left_behind(changed(*path, value=value), on_disk=60)
    assert any(says in complaint for complaint in complaints), complaints


def test_a_disk_that_holds_something_else_than_the_books_say() -> None:
    (complaint,) = left_behind(STATUS, on_disk=61)
    assert "61 bytes are on the disk" in complaint


@pytest.mark.parametrize("path", [("l1", "used_bytes"), ("l2", 0, "usage", "used_bytes")])
def test_a_tier_above_its_capacity(path: tuple[str | int, ...]) -> None:
    assert not sample_of(changed(*path, value=101), 1.0).within


def test_every_file_counts_but_the_lock(tmp_path: Path) -> None:
    (tmp_path / ".tmp").mkdir()
    (tmp_path / ".lock").write_bytes(b"owner")
    (tmp_path / ".tmp" / "half").write_bytes(b"123")
    (tmp_path / "whole").write_bytes(b"4567")
    assert disk_bytes(tmp_path) == 7


def test_engines_are_added_up() -> None:
    total = added_up([Tally(requests=1, read=2, complaints=["a"]), Tally(requests=3, lost=4, complaints=["b"])])
    assert total == Tally(requests=4, read=2, lost=4, complaints=["a", "b"])


def test_one_wrong_byte_is_seen(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start_server("--l1-size-gb", "0.05", "--chunk-size", str(CHUNK_TOKENS))
    orders = Orders(f"tcp://{HOST}:{server.port}", 0, 0.0, 1, 4, CHUNK_BYTES, requests_min=2)
    right = work(orders)
    assert (right.complaints, right.read) == ([], 4)
    read = PatternEngine.read

    def with_a_flaw(self: PatternEngine, slot: SlotDescriptor) -> bytes:
        data = bytearray(read(self, slot))
        data[-1] ^= 1
        return bytes(data)

    monkeypatch.setattr(PatternEngine, "read", with_a_flaw)
    assert any("wrong bytes in chunks [0, 1, 2, 3]" in said for said in work(orders).complaints)


def test_a_server_that_is_gone_is_a_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.l2_soak.engine.TIMEOUT_SECONDS", 0.1)
    (said,) = work(Orders(f"tcp://{HOST}:1", 0, 0.0, 1, 4, CHUNK_BYTES, requests_min=1)).complaints
    assert "NoAnswer" in said
