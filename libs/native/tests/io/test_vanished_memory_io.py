"""Memory that goes away under an operation is an answer, and not the end of the process."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest

from libs.native.tests.io.io_rig import Memory, Rig, address_of, opened
from lmcache_native.io import COPY, READ, WRITE

MIB = 1 << 20


class Shrunk:
    """A mapping of a file of which only the first half is there any more."""

    def __init__(self, path: Path, length: int) -> None:
        path.write_bytes(bytes(length))
        fd = os.open(path, os.O_RDWR)
        self._pages = mmap.mmap(fd, length)
        os.ftruncate(fd, length // 2)
        os.close(fd)
        self.address = address_of(self._pages)


@pytest.fixture
def shrunk(tmp_path: Path) -> Shrunk:
    return Shrunk(tmp_path / "memory", 4 * MIB)


@pytest.mark.parametrize("head", [0, 4096, 3 * MIB])
@pytest.mark.parametrize("digest_from", [-1, 0, 4096])
@pytest.mark.parametrize("length", [3 * MIB, 4 * MIB, 4 * MIB - 3])
def test_a_copy(rig: Rig, shrunk: Shrunk, head: int, digest_from: int, length: int) -> None:
    memory = Memory(4 * MIB)
    assert rig.do_one(COPY, shrunk.address, memory.address, length, head, digest_from) == (-errno.EFAULT, None)
    assert rig.do_one(COPY, memory.address, shrunk.address, length, head, digest_from) == (-errno.EFAULT, None)
    assert rig.do_one(COPY, shrunk.address, memory.address, MIB, 0, digest_from)[0] == MIB


@pytest.mark.parametrize("shift", [0, 8], ids=["aligned", "misaligned"])
@pytest.mark.parametrize("align", [0, 4096])
def test_a_read_and_a_write(rig: Rig, shrunk: Shrunk, tmp_path: Path, align: int, shift: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4 * MIB))
    address, length = shrunk.address + shift, 3 * MIB
    with opened(path, os.O_RDWR | (os.O_DIRECT if align else 0)) as fd:
        assert rig.do_one(READ, fd, 0, address, length, align, 0) == (-errno.EFAULT, None)
        assert rig.do_one(WRITE, fd, 0, address, length, align, 0, 0) == (-errno.EFAULT, None)
