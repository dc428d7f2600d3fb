"""What killed programs leave in /dev/shm is found, and nothing else is."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from demo.child_process import ChildProcess
from demo.shared_memory import SHM_ROOT, shared_by_group, unmapped_files

SHARER = (
    "import multiprocessing, time; from multiprocessing import shared_memory;"
    "semaphore = multiprocessing.get_context('spawn').Semaphore();"
    "shared = shared_memory.SharedMemory(create=True, size=4096);"
    "print(shared.name, 'sem.' + semaphore._semlock.name[1:], flush=True); time.sleep(60)"
)


@pytest.fixture
def sharer(tmp_path: Path) -> Iterator[ChildProcess]:
    """A program that shares memory, by which it is known to be up."""
    child = ChildProcess("sharer", [sys.executable, "-c", SHARER], tmp_path / "log", os.environ)
    child.start(piped=True)
    yield child
    child.kill()
    child.stdout.close()


def files_of(sharer: ChildProcess) -> set[Path]:
    """A piece of memory and a semaphore, when the program has made them."""
    return {SHM_ROOT / name for name in sharer.stdout.readline().split()}


def test_what_a_group_shares_is_known_while_it_lives_and_nobodys_afterwards(sharer: ChildProcess) -> None:
    files = files_of(sharer)
    assert len(files) == 2
    assert shared_by_group(sharer.pid) == files
    assert not files & unmapped_files()
    sharer.kill()
    assert files <= unmapped_files()
    for path in files:
        path.unlink()
    assert not files & unmapped_files()


def test_memory_of_another_group_is_left_out(sharer: ChildProcess) -> None:
    files = files_of(sharer)
    mine = shared_memory.SharedMemory(create=True, size=4096)
    try:
        assert shared_by_group(sharer.pid) == files
    finally:
        mine.close()
        mine.unlink()
        sharer.kill()
        for path in files:
            path.unlink()
