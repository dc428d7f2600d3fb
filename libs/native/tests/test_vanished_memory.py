"""Memory that its owner takes away while it is copied costs that copy, and not the process.

Each case is a process of its own: some of them are meant to die.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("lmcache_native", reason="lmcache-native is not installed")

PRELUDE = """
import ctypes, errno, faulthandler, mmap, os, signal, threading
from array import array
import lmcache_native as native

PLANES, BLOCKS, SLOT = 16, 16, 2048
BLOCK = 16 * SLOT
OBJECT = PLANES * BLOCKS * BLOCK          # 8 MiB

def address(memory):
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))

class Shared:
    def __init__(self, size):
        self.file = os.memfd_create("pages")
        os.ftruncate(self.file, size)
        self.memory = mmap.mmap(self.file, size)
        self.address = address(self.memory)
    def truncate(self, size):
        os.ftruncate(self.file, size)

pages, chunk = Shared(OBJECT), mmap.mmap(-1, OBJECT)

def copy(direction=native.GATHER, threads=1):
    bases = array("Q", [pages.address + plane * BLOCKS * BLOCK for plane in range(PLANES)])
    return native.copy_pages(direction, bases, array("q", range(BLOCKS)), array("Q", [address(chunk)]), 1, PLANES, 0, PLANES,
                             16, 8, 256, BLOCK, SLOT, 256, 0, threads)

def fails(**how):
    try:
        copy(**how)
    except OSError as error:
        assert error.errno == errno.EFAULT, error
        return True
    return False

def touch(place):
    return ctypes.c_char.from_address(pages.address + place).value
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    source = PRELUDE + textwrap.dedent(script)
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("direction", ["GATHER", "SCATTER"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("left", ["0", "OBJECT // 2", "OBJECT - 4096"])
def test_the_copy_fails_and_the_next_one_works(left: str, threads: int, direction: str) -> None:
    done = run(f"""
        how = dict(direction=native.{direction}, threads={threads})
        assert copy(**how) == OBJECT
        pages.truncate({left})
        for _ in range(20):
            assert fails(**how)
        pages.truncate(OBJECT)
        pages.memory[:] = b"\\x05" * OBJECT
        assert copy(threads={threads}) == OBJECT and chunk[:] == pages.memory[:]
        print("alive")
    """)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_several_copies_fail_at_the_same_time() -> None:
    done = run("""
        pages.truncate(OBJECT // 2)
        failed = []
        threads = [threading.Thread(target=lambda: failed.append(all(fails(threads=2) for _ in range(20)))) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert failed == [True] * 4
        print("alive")
    """)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


@pytest.mark.parametrize("threads", [1, 2])
def test_a_thread_that_blocks_the_signal_has_the_guard_too(threads: int) -> None:
    done = run(f"""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        assert copy(threads={threads}) == OBJECT
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked and signal.SIGBUS in blocked
        pages.truncate(OBJECT // 2)
        assert fails(threads={threads}) and fails(threads={threads})
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked
        print("alive")
    """)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_a_copy_fails_under_a_truncation_that_races_it() -> None:
    done = run("""
        ended = False
        def truncate():
            while not ended:
                pages.truncate(OBJECT // 4)
                pages.truncate(OBJECT)
        thread = threading.Thread(target=truncate)
        thread.start()
        for _ in range(200):
            fails(threads=2)  # or not; what counts is who is left to say so
        ended = True
        thread.join()
        assert not fails()
        print("alive")
    """)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


@pytest.mark.parametrize("before", ["", "copy()", "assert copy() and fails() is False"])
def test_a_fault_elsewhere_still_ends_the_process(before: str) -> None:
    done = run(f"""
        {before}
        pages.truncate(0)
        touch(0)
        print("alive")
    """)
    assert done.returncode == -signal.SIGBUS
    assert "alive" not in done.stdout


def test_a_fault_elsewhere_ends_the_process_after_one_that_was_survived() -> None:
    done = run("""
        pages.truncate(0)
        assert fails()
        touch(0)
    """)
    assert done.returncode == -signal.SIGBUS


@pytest.mark.parametrize(
    "order", ["faulthandler.enable(); copy()", "copy(); faulthandler.enable()", "copy(); faulthandler.enable(); copy()"]
)
def test_the_faulthandler_still_prints(order: str) -> None:
    done = run(f"""
        {order}
        pages.truncate(0)
        touch(0)
    """)
    assert done.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in done.stderr
    assert "in touch" in done.stderr


@pytest.mark.parametrize(
    "order",
    [
        "faulthandler.enable()",
        "copy(); faulthandler.enable()",
        "faulthandler.enable(); copy(); faulthandler.disable()",
        "faulthandler.enable(); copy(); faulthandler.disable(); faulthandler.enable()",
    ],
)
def test_the_faulthandler_does_not_take_the_guard_away(order: str) -> None:
    done = run(f"""
        {order}
        pages.truncate(0)
        assert fails() and fails(threads=2)
        print("alive")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")


def test_a_signal_that_was_sent_means_what_it_meant() -> None:
    assert run("copy(); os.kill(os.getpid(), signal.SIGBUS)").returncode == -signal.SIGBUS
    ignored = run("""
        signal.signal(signal.SIGBUS, signal.SIG_IGN)
        copy()
        os.kill(os.getpid(), signal.SIGBUS)
        print("alive")
    """)
    assert (ignored.returncode, ignored.stdout) == (0, "alive\n"), ignored.stderr
    handled = run("""
        signal.signal(signal.SIGBUS, lambda number, frame: print("handled"))
        copy()
        os.kill(os.getpid(), signal.SIGBUS)
        copy()
        os.kill(os.getpid(), signal.SIGBUS)
    """)
    assert (handled.returncode, handled.stdout) == (0, "handled\nhandled\n"), handled.stderr


def test_a_child_has_the_guard_too() -> None:
    done = run("""
        assert copy(threads=2) == OBJECT
        child = os.fork()
        if child == 0:
            assert copy(threads=2) == OBJECT
            pages.truncate(0)
            os._exit(0 if fails() and fails(threads=2) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        print("alive")
    """)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
