"""Every durable adapter is killed at random moments.  Afterwards index, listing, usage and medium say the same, every object
whose store was DONE is whole, and nothing that was deleted is there."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lmcache_devkit.offer_under_test import OpenableOffer, installed_offer
from lmcache_native.io import IoEngine
from lmcache_object_files import accepts_direct
from tests.durability.journal import Phase
from tests.durability.kill_rounds import KillRounds, Medium
from tests.durability.media import in_files, in_slots

CAPACITY_GB = 4 / 2**10
"""Less than all objects together, as the slots are fewer: full again and again."""
SLOT_BYTES = 192 * 2**10
SLOTS = 40
META_BYTES = 2**20


class Setup(NamedTuple):
    """An adapter on a medium of its own."""

    offer: str
    settings: dict[str, Any]
    medium: Medium


def fs(folder: Path) -> Setup:
    root = folder / "kv"
    return Setup("fs", {"base_path": str(root), "max_capacity_gb": CAPACITY_GB}, partial(in_files, root))


def fs_native(folder: Path, io_engine: str) -> Setup:
    """A ring moves only what goes past the page cache."""
    root = folder / "kv"
    settings = {
        "base_path": str(root), "max_capacity_gb": CAPACITY_GB, "io_engine": io_engine,
        "use_odirect": io_engine == "io_uring",
    }  # fmt: skip
    return Setup("fs_native", settings, partial(in_files, root))


def raw_block(folder: Path, io_engine: str) -> Setup:
    """Checkpoints are written all the time."""
    device = sized_file(folder / "device")
    settings = {
        "device_path": str(device), "slot_bytes": SLOT_BYTES, "meta_total_bytes": META_BYTES, "io_engine": io_engine,
        "meta_checkpoint_interval_sec": 0.02, "meta_idle_quiet_ms": 0,
    }  # fmt: skip
    return Setup("raw_block", settings, partial(in_slots, device))


def dax(folder: Path, devices: int) -> Setup:
    files = [sized_file(folder / f"device{number}") for number in range(devices)]
    settings = {
        "device_path": list(map(str, files)), "max_dax_size_gb": files[0].stat().st_size / 2**30,
        "slot_bytes": SLOT_BYTES, "persist_enabled": True,
    }  # fmt: skip
    return Setup("dax", settings, partial(in_slots, *files))


def sized_file(path: Path) -> Path:
    path.touch()
    os.truncate(path, META_BYTES + SLOTS * SLOT_BYTES)
    return path


SETUPS: dict[str, Callable[[Path], Setup]] = {
    "fs": fs,
    "fs_native-threads": partial(fs_native, io_engine="threads"),
    "fs_native-io_uring": partial(fs_native, io_engine="io_uring"),
    "raw_block-posix": partial(raw_block, io_engine="posix"),
    "raw_block-io_uring": partial(raw_block, io_engine="io_uring"),
    "dax": partial(dax, devices=1),
    "dax-striped": partial(dax, devices=2),
}


@pytest.mark.parametrize("rounds", [8, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.timeout(900)
def test_what_was_done_survives_kills_and_nothing_else_does(name: str, rounds: int, tmp_path: Path) -> None:
    if "io_uring" in name and not IoEngine.has_io_uring():
        pytest.skip("this kernel does not let us use io_uring")
    if "io_uring" in name and not accepts_direct(tmp_path):
        pytest.skip("the file system of this test has no O_DIRECT, and nothing goes through a ring")
    setup = SETUPS[name](tmp_path)
    opener = OpenableOffer(installed_offer("l2_adapter", setup.offer), setup.settings)
    kills = KillRounds(opener, setup.medium, tmp_path, seed=rounds)
    try:
        kills.run(rounds)
    finally:
        kills.close()
    assert kills.killed_in[Phase.WORKING] > rounds // 4, f"the kills came while {kills.killed_in}"
