"""A device is taken where it is empty or ours, and left alone otherwise, byte for byte."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmcache_core import ConfigError, Outcome, ResourceError
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key
from lmcache_devkit.l2_driver import L2Driver
from lmcache_devkit.l2_suite import put
from lmcache_l2_raw_block.adapter import open_raw_block
from lmcache_object_slots.sealed_page import PAGE_BYTES, pack_page, unpack_page
from lmcache_object_slots.superblock import MAGIC
from plugins.l2_raw_block.tests.conftest import META_BYTES, SLOT_BYTES, SLOTS, OpenHere, known_usage, settings_for

DONE, REJECTED = Outcome.DONE, Outcome.REJECTED


def test_a_second_owner_gets_the_name_of_the_first(device: Path, open_here: OpenHere, memory: BorrowedMemory) -> None:
    put(open_here(), memory, 2)
    before = device.read_bytes()
    with pytest.raises(
        ResourceError, match=rf"'{device}' is in use by server 'instance-of-tests' \(pid {os.getpid()} on"
    ):
        open_here()
    assert device.read_bytes() == before


@pytest.mark.parametrize("at", [0, 5000, META_BYTES + 3 * SLOT_BYTES, META_BYTES + SLOTS * SLOT_BYTES - 10])
def test_what_is_not_empty_and_not_ours_is_left_as_it_is(device: Path, open_here: OpenHere, at: int) -> None:
    with device.open("r+b") as file:
        file.seek(at)
        file.write(b"letters")
    before = device.read_bytes()
    with pytest.raises(ResourceError, match="is not empty, and holds no slots of ours; it was left as it is"):
        open_here()
    assert device.read_bytes() == before


@pytest.mark.parametrize(
    ("changed", "reported"),
    [
        ({"meta_magic": "another"}, "meta_magic 'lmcache' where 'another'"),
        ({"meta_version": 2}, "meta_version 1 where 2"),
        ({"slot_bytes": 2 * SLOT_BYTES}, f"slot_bytes {SLOT_BYTES} where {2 * SLOT_BYTES}"),
        ({"header_bytes": 8192}, "header_bytes 4096 where 8192"),
        ({"block_align": 8192}, "block_align 4096 where 8192"),
        ({"meta_total_bytes": META_BYTES // 2}, "meta_total_bytes"),
        ({"capacity_bytes": META_BYTES + 9 * SLOT_BYTES}, f"number of slots {SLOTS} where 9"),
    ],
)
def test_another_magic_version_or_geometry_is_refused_and_kept(
    device: Path, open_here: OpenHere, memory: BorrowedMemory, changed: dict[str, object], reported: str
) -> None:
    first = open_here()
    keys = put(first, memory, 3)
    first.close(10)
    before = device.read_bytes()
    with pytest.raises(ResourceError, match=reported):
        open_here(**changed)
    assert device.read_bytes() == before
    assert open_here().has(*keys) == (DONE,) * 3


def test_a_damaged_superblock_is_refused(device: Path, open_here: OpenHere, memory: BorrowedMemory) -> None:
    first = open_here()
    put(first, memory, 1)
    first.close(10)
    with device.open("r+b") as file:
        for copy in range(2):
            file.seek(copy * 4096 + 100)
            file.write(b"\xff\xff")
    with pytest.raises(ResourceError, match="superblock of ours that is damaged"):
        open_here()


def test_a_superblock_that_a_later_version_wrote_is_refused(
    device: Path, open_here: OpenHere, memory: BorrowedMemory
) -> None:
    first = open_here()
    put(first, memory, 1)
    first.close(10)
    with device.open("r+b") as file:
        for copy in range(2):
            fields = unpack_page(MAGIC, os.pread(file.fileno(), PAGE_BYTES, copy * 4096))
            os.pwrite(file.fileno(), pack_page(MAGIC, {**(fields or {}), "later": 1}), copy * 4096)
    before = device.read_bytes()
    with pytest.raises(ResourceError, match="or of a later version"):
        open_here()
    assert device.read_bytes() == before


def test_one_damaged_superblock_is_none(device: Path, open_here: OpenHere, memory: BorrowedMemory) -> None:
    first = open_here()
    keys = put(first, memory, 3)
    first.close(10)
    with device.open("r+b") as file:
        file.write(bytes(4096))
    again = open_here()
    assert known_usage(again).objects == 3
    assert again.has(*keys) == (DONE,) * 3


def test_overwriting_discards_what_is_there_for_good(device: Path, open_here: OpenHere, memory: BorrowedMemory) -> None:
    first = open_here()
    keys = put(first, memory, SLOTS)
    first.close(10)
    second = open_here(meta_version=2, overwrite_device=True)
    assert known_usage(second).objects == 0
    assert second.has(*keys) == (Outcome.MISSING,) * SLOTS
    put(second, memory, SLOTS, first=100)
    second.close(10)
    third = open_here(meta_version=2, overwrite_device=True)
    assert known_usage(third).objects == SLOTS, "the flag alone discards nothing that is ours"


def test_overwriting_takes_a_device_that_is_full_of_something_else(
    device: Path, open_here: OpenHere, memory: BorrowedMemory
) -> None:
    device.write_bytes(os.urandom(device.stat().st_size))
    driver = open_here(overwrite_device=True)
    assert known_usage(driver).objects == 0
    put(driver, memory, SLOTS)
    late = object_key(999)
    assert driver.store((late, memory.sealed(late, b"too late"))) == (REJECTED,)


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        ({"capacity_bytes": META_BYTES + (SLOTS + 1) * SLOT_BYTES}, "and capacity_bytes is"),
        ({"meta_total_bytes": META_BYTES + SLOTS * SLOT_BYTES}, "hold no slot of"),
        ({"meta_total_bytes": 32768}, "meta_total_bytes 32768 is too small for two checkpoints of 47 slots; give it"),
    ],
)
def test_what_does_not_fit_the_device_is_said(
    device: Path, open_here: OpenHere, settings: dict[str, object], reported: str
) -> None:
    with pytest.raises(ConfigError, match=reported):
        open_here(**settings)
    assert not any(device.read_bytes())


def test_what_is_not_a_device_is_an_error(tmp_path: Path, memory: BorrowedMemory) -> None:
    for path, reported in (
        (tmp_path / "none", "the file does not exist"),
        (tmp_path, "cannot be used"),
        (Path("/dev/null"), "neither"),
    ):
        with pytest.raises(ResourceError, match=reported):
            open_raw_block(settings_for(path), adapter_context(memory))


def test_a_refusal_leaves_no_descriptor(device: Path, open_here: OpenHere) -> None:
    device.write_bytes(b"letters" * 1000)
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(ConfigError):
            open_here()
    assert set(os.listdir("/proc/self/fd")) == before


# A block device.


@pytest.fixture
def loop_device(device: Path) -> Iterator[Path]:
    made = subprocess.run(["losetup", "--find", "--show", str(device)], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no loop device is to be had here: {made.stderr.strip()}")
    path = Path(made.stdout.strip())
    yield path
    subprocess.run(["losetup", "--detach", str(path)], check=True)


def test_a_block_device_keeps_what_is_stored_and_has_one_owner(loop_device: Path, memory: BorrowedMemory) -> None:
    first = L2Driver(open_raw_block(settings_for(loop_device), adapter_context(memory)))
    keys = put(first, memory, 5)
    with pytest.raises(ResourceError, match="is in use by server 'instance-of-tests'"):
        open_raw_block(settings_for(loop_device), adapter_context(memory))
    first.close(10)
    second = L2Driver(open_raw_block(settings_for(loop_device), adapter_context(memory)))
    try:
        assert second.load(*((key, memory.lend(14_096)) for key in keys)) == (DONE,) * 5
    finally:
        second.close(10)


def test_a_block_device_that_is_mounted_is_refused(loop_device: Path, tmp_path: Path, memory: BorrowedMemory) -> None:
    where = tmp_path / "mounted"
    where.mkdir()
    subprocess.run(["mkfs.ext4", "-q", str(loop_device)], check=True)
    subprocess.run(["mount", str(loop_device), str(where)], check=True)
    try:
        with pytest.raises(ResourceError, match="it is mounted"):
            open_raw_block(settings_for(loop_device, overwrite_device=True), adapter_context(memory))
    finally:
        subprocess.run(["umount", str(where)], check=True)
    with pytest.raises(ResourceError, match="is not empty"):
        open_raw_block(settings_for(loop_device), adapter_context(memory))


def test_a_file_that_is_replaced_while_it_is_opened_is_refused(
    device: Path, open_here: OpenHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def overtaken(fd: int, how: int) -> None:
        monkeypatch.undo()
        flock(fd, how)
        another = tmp_path / "another"
        another.write_bytes(bytes(device.stat().st_size))
        another.rename(device)

    monkeypatch.setattr(fcntl, "flock", overtaken)
    with pytest.raises(ResourceError, match="was replaced while it was opened"):
        open_here()
    open_here()


def test_a_device_that_is_replaced_while_it_is_in_use_is_a_condition(
    device: Path, open_here: OpenHere, memory: BorrowedMemory, tmp_path: Path
) -> None:
    driver = open_here()
    put(driver, memory, 2)
    assert driver.adapter.conditions() == []
    device.rename(tmp_path / "away")
    (gone,) = driver.adapter.conditions()
    device.write_bytes(bytes(100))
    (replaced,) = driver.adapter.conditions()
    assert gone.name == replaced.name == "medium_replaced"
    assert str(device) in replaced.reason
    (tmp_path / "away").rename(device)
    assert driver.adapter.conditions() == [], "it ends with its fault"
    driver.close(10)
    assert driver.adapter.conditions() in ([], ())
