"""Memory that tests and benchmarks share with other processes does not stay behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lmcache_devkit import BorrowedMemory

KILLED = """
import os, signal
from lmcache_devkit import BorrowedMemory
print(BorrowedMemory(4096, shared=True).path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_its_segment_until_the_next_one_opens() -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, check=False)
    left = Path(killed.stdout.strip())
    assert left.exists()
    first = BorrowedMemory(4096, shared=True)
    second = BorrowedMemory(4096, shared=True)
    assert not left.exists()
    assert first.path is not None
    assert first.path.exists()
    first.close()
    second.close()
    assert not first.path
