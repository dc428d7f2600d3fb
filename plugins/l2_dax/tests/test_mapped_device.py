"""What may be mapped, and how much of it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmcache_core import ResourceError
from lmcache_l2_dax.mapped_device import Extent, MappedDevice, extent_of, open_device
from lmcache_l2_dax.prefault import STEP_BYTES, Prefault

MIB = 2**20


@pytest.fixture
def device(tmp_path: Path) -> Iterator[MappedDevice]:
    """A file of 64 MiB that no block belongs to yet."""
    path = tmp_path / "device"
    path.touch()
    os.truncate(path, 64 * MIB)
    device = MappedDevice(path, open_device(path), 64 * MIB)
    yield device
    device.close()


def extent(path: Path, wanted_bytes: int, devices: Path = Path("/sys/dev/char")) -> Extent:
    descriptor = open_device(path)
    try:
        return extent_of(path, descriptor, wanted_bytes, devices)
    finally:
        os.close(descriptor)


def test_a_file_has_its_length(tmp_path: Path) -> None:
    path = tmp_path / "device"
    path.write_bytes(bytes(3 * MIB))
    assert extent(path, 8 * MIB) == Extent(3 * MIB, 4096)


def test_an_empty_file_becomes_as_long_as_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "device"
    path.touch()
    assert extent(path, 8 * MIB) == Extent(8 * MIB, 4096)
    about = path.stat()
    assert (about.st_size, about.st_blocks) == (8 * MIB, 0)


@pytest.mark.parametrize(("align", "expected"), [("2097152\n", 2 * MIB), ("1073741824\n", 2**30), (None, 2 * MIB)])
def test_sysfs_says_how_large_a_device_is(tmp_path: Path, align: str | None, expected: int) -> None:
    """A character device of the system replaces one of memory; its facts are made up."""
    number = os.stat("/dev/null").st_rdev
    (tmp_path / "bus" / "dax").mkdir(parents=True)
    facts = tmp_path / f"{os.major(number)}:{os.minor(number)}"
    facts.mkdir()
    (facts / "subsystem").symlink_to(tmp_path / "bus" / "dax")
    (facts / "size").write_text(f"{6 * 2**30}\n")
    if align is not None:
        (facts / "align").write_text(align)
    assert extent(Path("/dev/null"), 2**30, tmp_path) == Extent(6 * 2**30, expected)


@pytest.mark.parametrize("kind", ["another device", "folder"])
def test_what_is_neither_is_refused(tmp_path: Path, kind: str) -> None:
    path = Path("/dev/null") if kind == "another device" else tmp_path
    with pytest.raises(ResourceError, match=f"'{path}'.*(neither a Device-DAX device nor a file|cannot be opened)"):
        extent(path, MIB)


def test_a_device_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "dax9.0"
    with pytest.raises(ResourceError, match=r"dax9\.0' cannot be opened \(No such file.*make a file first"):
        open_device(path)
    assert not path.exists()


def test_what_is_written_to_the_mapping_is_in_the_file(device: MappedDevice) -> None:
    ctypes.memmove(device.address + 5 * MIB, b"seen", 4)
    device.flush()
    with device.path.open("rb") as file:
        file.seek(5 * MIB)
        assert file.read(4) == b"seen"
    assert device.is_file


def test_pages_lie_ready_ahead_of_use_and_no_further(device: MappedDevice) -> None:
    prefault = Prefault([device], "dax", ahead_bytes=2 * STEP_BYTES)
    wait_for(prefault, 0)
    prefault.reach(0)
    wait_for(prefault, 3 * STEP_BYTES)
    assert device.path.stat().st_blocks * 512 == 3 * STEP_BYTES
    prefault.reach(2 * STEP_BYTES)
    wait_for(prefault, 4 * STEP_BYTES)  # all of it
    prefault.reach(64 * MIB)
    prefault.close()
    prefault.close()
    assert prefault.done_bytes == 64 * MIB


def test_pages_that_are_not_available_are_a_warning(device: MappedDevice, caplog: pytest.LogCaptureFixture) -> None:
    os.truncate(device.path, MIB)
    prefault = Prefault([device], "dax")
    prefault.reach(0)
    prefault.wait_idle(10)
    prefault.close()
    assert prefault.done_bytes == 0
    assert "are not available ahead of need" in caplog.text


def wait_for(prefault: Prefault, done_bytes: int) -> None:
    assert prefault.wait_idle(10)
    assert prefault.done_bytes == done_bytes
