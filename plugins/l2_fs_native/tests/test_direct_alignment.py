"""What O_DIRECT asks for, and which objects are moved with it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lmcache_l2_fs_native import direct_alignment
from lmcache_l2_fs_native.direct_alignment import DirectAlignment, find_alignment


def test_what_is_found_works_and_leaves_no_file(tmp_path: Path) -> None:
    align = find_alignment(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert align == 0 or align % 4096 == 0


def test_what_the_kernel_says_is_what_a_trial_finds(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    try:
        reported = direct_alignment._reported(fd)
        if reported is None:
            pytest.skip("this kernel or file system has no STATX_DIOALIGN")
        assert reported == direct_alignment._tried(fd)
    finally:
        os.close(fd)


def test_where_the_kernel_does_not_say_it_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = find_alignment(tmp_path)
    monkeypatch.setattr(direct_alignment, "_reported", lambda fd: None)
    assert find_alignment(tmp_path) == expected


@pytest.mark.parametrize("block_bytes", [4096, 65_536, 2**20])
def test_larger_blocks_are_found_by_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    """A parallel file system that takes whole blocks only and does not say so."""
    pwrite = os.pwrite

    def picky(fd: int, data: memoryview, at: int) -> int:
        if len(data) % block_bytes or at % block_bytes:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return pwrite(fd, data, at)

    monkeypatch.setattr(direct_alignment, "_reported", lambda fd: None)
    monkeypatch.setattr(os, "pwrite", picky)
    assert find_alignment(tmp_path) == block_bytes
    monkeypatch.setattr(direct_alignment, "ALIGN_BYTES_MAX", block_bytes // 2)
    assert find_alignment(tmp_path) == 0


def test_a_file_system_without_it_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system_open = os.open

    def without_direct(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return system_open(path, flags, *rest)

    monkeypatch.setattr(os, "open", without_direct)
    assert find_alignment(tmp_path) == 0
    assert list(tmp_path.iterdir()) == []


def test_other_faults_are_raised(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        find_alignment(tmp_path / "nowhere")


def test_an_object_that_is_shorter_than_a_block_goes_through_the_page_cache() -> None:
    direct = DirectAlignment(65_536)
    assert [direct.of(length) for length in (1, 65_535, 65_536, 65_537, 2**22)] == [0, 0, 65_536, 65_536, 65_536]
    assert DirectAlignment(0).of(2**22) == 0
