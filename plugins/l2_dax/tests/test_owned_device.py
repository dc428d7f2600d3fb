"""A device is locked before anything else, and what it holds is left alone until it is known to be ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmcache_core import AdapterContext, ResourceError
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context
from lmcache_l2_dax.owned_device import OwnedDevice, open_owned

MIB = 2**20
SIZE = 8 * MIB


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "device"
    path.touch()
    return path


@pytest.fixture
def device(path: Path) -> Iterator[OwnedDevice]:
    device = open_owned(path, SIZE, context())
    yield device
    device.close()


def context(boot_id: str = "boot-1") -> AdapterContext:
    return adapter_context(BorrowedMemory(MIB), boot_id=boot_id, name="dax")


def test_a_second_owner_is_refused_and_the_first_is_named(device: OwnedDevice, path: Path) -> None:
    with pytest.raises(ResourceError, match=f"'{path}' is in use by another process that has not said who it is"):
        open_owned(path, SIZE, context())
    device.sign(context())
    with pytest.raises(
        ResourceError, match=rf"is in use by server 'instance-of-tests' \(pid {os.getpid()} on .*boot-1"
    ):
        open_owned(path, SIZE, context("boot-2"))


def test_one_that_is_given_back_can_be_had_again(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        open_owned(path, SIZE, context()).close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("wanted", [100, 2 * SIZE])
def test_sizes_that_are_not_available_are_refused_and_leave_nothing_open(path: Path, wanted: int) -> None:
    os.truncate(path, SIZE)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ResourceError, match=r"max_dax_size_gb (is less; raise it|asks for 0\.015625; lower it)"):
        open_owned(path, wanted, context())
    assert os.listdir("/proc/self/fd") == before


def test_bytes_of_the_region_are_bytes_of_the_file(device: OwnedDevice, path: Path) -> None:
    data = os.urandom(100_001)
    device.region.write(5_000, data)
    device.region.write(7, b"")
    device.region.sync()
    assert path.read_bytes()[5_000:105_001] == data
    assert device.region.read(5_000, len(data)) == data
    assert device.region.read(0, 0) == b""


@pytest.mark.parametrize("at", [0, 4 * MIB - 1, 4 * MIB + 5, SIZE - 4096])
def test_one_byte_is_enough_not_to_be_blank(device: OwnedDevice, path: Path, at: int) -> None:
    assert device.is_blank()
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"x")
    assert not device.is_blank()


def test_a_page_that_vanishes_is_an_error_and_not_the_end(device: OwnedDevice, path: Path) -> None:
    os.truncate(path, MIB)
    with pytest.raises(OSError, match=str(path)):
        device.region.read(2 * MIB, 4096)
    with pytest.raises(OSError, match=str(path)):
        device.region.write(2 * MIB, b"lost")
    assert device.region.read(0, 4096) == bytes(4096)
