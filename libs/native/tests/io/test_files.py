"""Whole files: what is in their place, and what is left behind when something fails."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.native.tests.io.io_rig import Memory, Rig, opened
from lmcache_native.io import READ, READ_FILE, WRITE, WRITE_FILE

LENGTH = 1 << 20


@pytest.fixture
def memory() -> Memory:
    made = Memory(2 * LENGTH)
    made.view[:LENGTH] = b"k" * LENGTH
    return made


@pytest.fixture(params=[0, 4096], ids=["buffered", "direct"])
def align(request: pytest.FixtureRequest) -> int:
    value: int = request.param
    return value


def read(rig: Rig, path: Path, memory: Memory, length: int, align: int) -> int:
    return rig.do_one(READ_FILE, os.fsencode(path), memory.address, length, align, -1, 0)[0]


def write(rig: Rig, temporary: Path, path: Path, address: int, length: int, align: int, sync: int = 0) -> int:
    return rig.do_one(WRITE_FILE, os.fsencode(temporary), os.fsencode(path), address, length, align, sync)[0]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("length", [LENGTH - 1, LENGTH + 1, 0])
def test_another_length_is_not_data(rig: Rig, memory: Memory, tmp_path: Path, align: int, length: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(length))
    before = descriptors()
    assert read(rig, path, memory, LENGTH, align) == -errno.ENODATA
    assert descriptors() == before


def test_what_is_not_a_plain_file_neither_leads_elsewhere_nor_blocks(
    rig: Rig, memory: Memory, tmp_path: Path, align: int
) -> None:
    target = tmp_path / "target"
    target.write_bytes(bytes(LENGTH))
    link, fifo, folder, speaker = (tmp_path / name for name in ("link", "fifo", "folder", "socket"))
    link.symlink_to(target)
    os.mkfifo(fifo)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(speaker))
        for path in (link, fifo, folder, speaker, Path("/dev/zero")):
            assert read(rig, path, memory, LENGTH, align) == -errno.ELOOP, path
    assert read(rig, tmp_path / "missing", memory, LENGTH, align) == -errno.ENOENT


def test_nothing_is_written_over(rig: Rig, memory: Memory, tmp_path: Path, align: int) -> None:
    path = tmp_path / "path"
    path.write_bytes(b"first")
    assert write(rig, tmp_path / "temporary", path, memory.address, LENGTH, align) == -errno.EEXIST
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["path"]


def test_a_temporary_that_is_there_belongs_to_another_writer(
    rig: Rig, memory: Memory, tmp_path: Path, align: int
) -> None:
    temporary, path = tmp_path / "temporary", tmp_path / "path"
    temporary.write_bytes(b"another's")
    assert write(rig, temporary, path, memory.address, LENGTH, align) == -errno.EEXIST
    assert temporary.read_bytes() == b"another's"
    assert not path.exists()


@pytest.mark.parametrize("sync", [0, 1])
def test_a_failure_leaves_no_temporary(rig: Rig, memory: Memory, tmp_path: Path, align: int, sync: int) -> None:
    memory.forbid(LENGTH // 2, LENGTH)
    before = descriptors()
    for length in (LENGTH, LENGTH - 5):
        result = write(rig, tmp_path / "temporary", tmp_path / "path", memory.address, length, align, sync)
        assert result == -errno.EFAULT
    path = tmp_path / "missing" / "path"
    assert write(rig, tmp_path / "temporary", path, memory.address, 4096, align, sync) == -errno.ENOENT
    assert os.listdir(tmp_path) == []
    assert descriptors() == before


def test_a_full_medium(rig: Rig, memory: Memory) -> None:
    with opened(Path("/dev/full"), os.O_WRONLY) as fd:
        assert rig.do_one(WRITE, fd, 0, memory.address, LENGTH, 0, 4096, 0)[0] == -errno.ENOSPC


def test_a_read_past_the_end(rig: Rig, memory: Memory, tmp_path: Path, align: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10_000))
    with opened(path, os.O_RDONLY | (os.O_DIRECT if align else 0)) as fd:
        for offset, length in ((8192, 4096), (0, 12_288), (1 << 30, 4096), (100, 9901)):
            result = rig.do_one(READ, fd, offset, memory.address, length, align, -1)
            assert result == (-errno.ENODATA, None), (offset, length)
        assert rig.do_one(READ, fd, 100, memory.address, 9900, align, -1)[0] == 9900


def test_the_head_is_not_written_when_the_rest_failed(rig: Rig, memory: Memory, tmp_path: Path, align: int) -> None:
    """A head says that what is behind it is whole: so it comes last, or not at all."""
    path = tmp_path / "slots"
    path.write_bytes(b"old" * LENGTH)
    memory.forbid(LENGTH // 2, 4096)
    for sync in (0, 1, 2):
        with opened(path, os.O_RDWR | (os.O_DIRECT if align else 0)) as fd:
            result = rig.do_one(WRITE, fd, 0, memory.address, LENGTH, align, 4096, sync)
        assert result == (-errno.EFAULT, None)
        assert path.read_bytes()[:4096] == (b"old" * 1366)[:4096]


@pytest.mark.parametrize("sync", [0, 1, 2])
@pytest.mark.parametrize("most", [4096, LENGTH // 2 + 4096, LENGTH - 512])
def test_the_head_is_not_written_when_the_rest_came_short(
    rig: Rig, memory: Memory, tmp_path: Path, align: int, most: int, sync: int
) -> None:
    """The kernel writes what a limit still allows, and refuses the rest."""
    path, before = tmp_path / "slots", resource.getrlimit(resource.RLIMIT_FSIZE)
    path.write_bytes(b"o" * LENGTH)
    with opened(path, os.O_RDWR | (os.O_DIRECT if align else 0)) as fd:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
        try:
            result = rig.do_one(WRITE, fd, 0, memory.address, LENGTH, align, 4096, sync)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert result == (-errno.EFBIG, None)
    assert path.read_bytes()[:4096] == b"o" * 4096


def test_what_has_no_offsets_is_refused(rig: Rig, memory: Memory) -> None:
    """A read of a pipe would wait for a writer that never comes."""
    reader, writer = os.pipe()
    try:
        for fd, kind, rest in ((reader, READ, (-1,)), (writer, WRITE, (0, 0))):
            assert rig.do_one(kind, fd, 0, memory.address, 4096, 0, *rest) == (-errno.ESPIPE, None)
    finally:
        os.close(reader)
        os.close(writer)


@pytest.fixture
def without_direct(tmp_path: Path) -> Iterator[Path]:
    """A folder of a file system that has no O_DIRECT.  Skips where nothing may be mounted."""
    folder = tmp_path / "ramfs"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"ramfs", os.fsencode(folder), b"ramfs", ctypes.c_ulong(0), None) != 0:
        pytest.skip("no file system may be mounted here")
    yield folder
    assert libc.umount2(os.fsencode(folder), 0) == 0


def test_a_file_system_without_direct_io_is_used_through_the_page_cache(
    rig: Rig, memory: Memory, without_direct: Path
) -> None:
    """It makes the file that it then refuses to open."""
    path = without_direct / "path"
    assert write(rig, without_direct / "temporary", path, memory.address, LENGTH, 4096, sync=1) == LENGTH
    assert os.listdir(without_direct) == ["path"]
    assert read(rig, path, memory, LENGTH, 4096) == LENGTH
