"""From the first thread to the last: closing, collecting, forking, and nothing left behind."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from libs.native.tests.io.held_memory import HeldMemory
from libs.native.tests.io.io_rig import Memory, Rig, opened
from lmcache_native.io import COPY, READ, SYNC, IoEngine


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_close_waits_for_what_is_under_way_and_cancels_the_rest(kind: str) -> None:
    held, memory = HeldMemory(), Memory(4096)
    rig = Rig(IoEngine(kind, 1, 1, 1 << 20))
    under_way = rig.submit((COPY, held.address, memory.address, 8, 0, -1))
    waiting = rig.submit((SYNC, 0), (SYNC, 0))
    assert not rig.engine.close(0)
    assert not rig.engine.close(0.05)
    assert rig.wait(waiting) == [(-errno.ECANCELED, None)] * 2
    with pytest.raises(RuntimeError, match="closed"):
        rig.engine.submit([(SYNC, 0, 0)])
    assert not rig.engine.register_memory(memory.address, 4096)
    held.release()
    assert rig.engine.close(60)
    assert rig.wait(under_way) == [(8, None)]
    assert rig.engine.close(0)
    assert rig.engine.answers() == []


def test_an_engine_that_is_collected_waits_for_what_is_under_way(kind: str) -> None:
    gc.collect()  # engines of other tests, and their threads
    held, memory, before = HeldMemory(), Memory(4096), threads()
    rig = Rig(IoEngine(kind, 2, 4, 1 << 20))
    rig.submit(*[(COPY, held.address, memory.address + at, 8, 0, -1) for at in (0, 64)])
    releasing = threading.Timer(0.2, held.release)
    releasing.start()
    del rig
    gc.collect()
    releasing.join()
    assert threads() == before


def test_a_child_of_a_fork_may_not_touch_it(kind: str) -> None:
    """It has no threads of the engine: it must neither wait for them nor take their lock."""
    rig = Rig(IoEngine(kind, 2, 4, 1 << 20))
    child = os.fork()
    if child == 0:  # only system calls from here on: the test process's other threads are gone
        status = 1
        try:
            rig.engine.submit([(SYNC, 0, 0)])
        except RuntimeError:
            status = 0
        del rig
        os._exit(status)
    assert os.waitpid(child, 0) == (child, 0)
    memory = Memory(4096)
    assert rig.do_one(COPY, memory.address, memory.address, 8, 0, -1) == (8, None)
    assert rig.engine.close(30)


WITHOUT_THREADS = """
import os, resource, sys
from lmcache_native.io import IoEngine

IoEngine(sys.argv[1], 1, 1, 1).close(30)
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)  # root has no such limit
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
before = len(os.listdir("/proc/self/fd"))
for _ in range(3):
    try:
        IoEngine(sys.argv[1], 2, 4, 1 << 20)
    except OSError as error:
        print(error.strerror)
print(len(os.listdir("/proc/self/fd")) - before)
"""


def test_an_engine_that_gets_no_thread_leaves_no_descriptor(kind: str) -> None:
    """In a process of its own, which is let have no more threads."""
    command = [sys.executable, "-c", WITHOUT_THREADS, kind]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split("\n")
    assert said == [os.strerror(errno.EAGAIN)] * 3 + ["0", ""]


@pytest.mark.parametrize(
    "rounds", [100, pytest.param(10_000, marks=pytest.mark.slow)]  # the latter for some 10 s
)  # fmt: skip
def test_nothing_is_left_behind(kind: str, rounds: int, tmp_path: Path) -> None:
    path, memory = tmp_path / "file", Memory(4096)
    path.write_bytes(bytes(4096))
    IoEngine(kind, 1, 1, 1).close(30)
    before = threads(), descriptors()
    with opened(path) as fd:
        for round_ in range(rounds):
            rig = Rig(IoEngine(kind, 2, 4, 1 << 20))
            rig.engine.register_memory(memory.address, 4096)
            rig.engine.register_file(fd)
            assert rig.do_one(READ, fd, 0, memory.address, 4096, 0, 0)[0] == 4096
            if round_ % 2:
                assert rig.engine.close(30)
    del rig
    assert (threads(), descriptors()) == before
