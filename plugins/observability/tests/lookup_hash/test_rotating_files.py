"""Files that rotate, are few, belong to their owner alone, and outlive a full disk."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_observability.lookup_hash.rotating_files import RotatingFiles


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def opened(folder: Path, clock: Clock, **limits: float) -> RotatingFiles:
    files = RotatingFiles(
        folder, "log", limits.get("age", 100.0), int(limits.get("size", 1000)), int(limits.get("files", 10)), clock
    )
    files.prepare()
    return files


def contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.iterdir())]


def test_a_file_is_full_at_its_size(tmp_path: Path) -> None:
    files = opened(tmp_path / "logs", Clock(), size=10)
    for piece in (b"12345\n", b"67890\n", b"abc\n"):
        files.write(piece, 1)
    files.close()
    assert contents(tmp_path / "logs") == [b"12345\n67890\n", b"abc\n"]


def test_a_file_is_old_after_its_time(tmp_path: Path) -> None:
    clock = Clock()
    files = opened(tmp_path, clock, age=60)
    for seconds in (0, 59, 1, 61, -300):
        clock.now += seconds
        files.write(b"%d\n" % seconds, 1)
    files.close()
    # the last one was written when the clock had been put back, so that its file sorts before the others
    assert sorted(contents(tmp_path)) == sorted([b"0\n59\n", b"1\n", b"61\n", b"-300\n"])


def test_the_open_file_stays_when_the_clock_is_put_back(tmp_path: Path) -> None:
    (tmp_path / "log_archive.jsonl").write_text("foreign, with a name that begins alike")
    clock = Clock()
    files = opened(tmp_path, clock, age=60, files=2)
    for number, seconds in enumerate((0, 100, -5000, 10)):
        clock.now += seconds
        files.write(b"%d\n" % number, 1)
    files.close()
    assert contents(tmp_path) == [b"2\n3\n", b"1\n", b"foreign, with a name that begins alike"]


def test_the_oldest_files_go_and_others_stay(tmp_path: Path) -> None:
    (tmp_path / "log_20000101_000000_000000.jsonl").write_text("of an earlier run")
    (tmp_path / "notes.txt").write_text("foreign")
    clock = Clock()
    files = opened(tmp_path, clock, size=1, files=3)
    for number in range(5):
        clock.now += 1
        files.write(b"%d\n" % number, 1)
    files.close()
    assert contents(tmp_path) == [b"2\n", b"3\n", b"4\n", b"foreign"]


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    files = opened(tmp_path / "a" / "b", Clock())
    files.write(b"x\n", 1)
    files.close()
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "a" / "b").iterdir()] == [0o600]


def test_names_that_are_taken_are_passed_over(tmp_path: Path) -> None:
    clock = Clock()
    first, second = opened(tmp_path, clock), opened(tmp_path, clock)
    first.write(b"1\n", 1)
    second.write(b"2\n", 1)
    first.close()
    second.close()
    assert contents(tmp_path) == [b"1\n", b"2\n"]


def test_nothing_written_leaves_nothing(tmp_path: Path) -> None:
    opened(tmp_path, Clock()).close()
    assert contents(tmp_path) == []


def test_a_full_disk_leaves_whole_pieces_and_writing_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = opened(tmp_path, Clock())
    files.write(b"before\n", 1)
    real_write = os.write

    def half(fd: int, data: memoryview) -> int:
        if len(data) < 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(fd, data[: len(data) // 2])

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(os, "write", half)
        for _ in range(3):
            files.write(b"this is not written as a whole\n" * 2, 2)
    assert files.dropped_pieces == 6
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text
    files.write(b"after\n", 1)
    files.close()
    assert contents(tmp_path) == [b"before\nafter\n"]


def test_a_folder_that_vanished_is_logged_and_costs_only_the_lines(tmp_path: Path) -> None:
    files = opened(tmp_path / "logs", Clock(), size=1)
    files.write(b"1\n", 1)
    next((tmp_path / "logs").iterdir()).unlink()
    (tmp_path / "logs").rmdir()
    files.write(b"2\n", 1)
    assert files.dropped_pieces == 1
    (tmp_path / "logs").mkdir()
    files.write(b"3\n", 1)
    files.close()
    assert contents(tmp_path / "logs") == [b"3\n"]


@given(pieces=st.lists(st.binary(min_size=1, max_size=40), max_size=30), size=st.integers(1, 100))
def test_nothing_is_lost_between_files(
    pieces: list[bytes], size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    files = opened(folder, Clock(), size=size, files=1000)
    for piece in pieces:
        files.write(piece, 1)
    files.close()
    assert b"".join(contents(folder)) == b"".join(pieces)
