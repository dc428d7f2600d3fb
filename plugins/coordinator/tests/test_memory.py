"""What a coordinator frees goes back to the system, whatever sizes it has seen before."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys
from lmcache_coordinator.command import give_memory_back

class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
if sys.argv[1] == "gives-back":
    give_memory_back()
for _ in range(3):
    bytes(16 * 2**20)
before = libc.mallinfo2().hblkhd
kept = bytes(2**20)
print(libc.mallinfo2().hblkhd - before >= len(kept))
"""


@pytest.mark.parametrize("way", ["gives-back", "as-it-is"])
def test_a_large_buffer_has_a_mapping_of_its_own_also_after_larger_ones(way: str) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("glibc's")
    ran = subprocess.run([sys.executable, "-c", PROGRAM, way], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == str(way == "gives-back")
