"""How a file comes to its name: whole, once, in the right order, and within the room there is."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmcache_core import HEADER_BYTES, Outcome, StoreItem, check, media_path
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key, payload_of
from lmcache_devkit.l2_driver import WAIT_SECONDS, L2Driver
from lmcache_devkit.l2_suite import OBJECT_BYTES, counted, put
from lmcache_l2_fs.adapter import FsAdapter, ObjectIO

DONE, REJECTED, FAILED = Outcome.DONE, Outcome.REJECTED, Outcome.FAILED
Open = Callable[..., FsAdapter]


def test_two_threads_that_store_one_key_are_both_done_with_one_file(
    open_here: Open, root: Path, memory: BorrowedMemory
) -> None:
    driver = L2Driver(open_here(num_workers=8))
    keys = [object_key(number) for number in range(20)]
    items = [StoreItem(key, memory.sealed(key, payload_of(number, 5_000))) for number, key in enumerate(keys)]
    jobs = [driver.adapter.submit_store([item]) for item in items for _ in range(4)]
    assert [driver.finish(job) for job in jobs] == [(DONE,)] * 80
    assert counted(driver) == (20, 20 * (HEADER_BYTES + 5_000))
    assert len(list(root.rglob("*.kv"))) == 20


def test_a_file_that_appears_while_we_write_is_looked_at_and_not_replaced(
    open_here: Open, root: Path, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = L2Driver(open_here())
    key = object_key(0)
    path = root / media_path(key)
    create = ObjectIO.create

    def create_and_be_overtaken(self: ObjectIO, temporary: str, data: memoryview) -> None:
        create(self, temporary, data)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"another thread was faster")

    monkeypatch.setattr(ObjectIO, "create", create_and_be_overtaken)
    assert driver.store((key, memory.sealed(key, b"x" * 50))) == (REJECTED,)
    assert path.read_bytes() == b"another thread was faster"
    assert counted(driver) == (0, 0)


def test_with_fsync_file_then_directories_are_on_the_medium_before_the_answer(
    open_here: Open, root: Path, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = open_here(fsync=True, num_workers=1)
    steps: list[str] = []
    fsync, link = os.fsync, os.link

    def recorded_fsync(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        steps.append("sync " + ("file" if path.suffix == ".tmp" else str(path.relative_to(root))))
        fsync(fd)

    def recorded_link(source: str, target: str) -> None:
        steps.append("link")
        link(source, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "link", recorded_link)
    driver = L2Driver(adapter)
    (key,) = put(driver, memory, 1)
    model, salt, fan_out, _ = media_path(key).split("/")
    parents = [".", model, f"{model}/{salt}"]
    assert steps == ["sync file", *(f"sync {name}" for name in parents), "link", f"sync {model}/{salt}/{fan_out}"]
    steps.clear()
    driver.delete(key)
    put(driver, memory, 1)
    assert steps == ["sync file", "link", f"sync {model}/{salt}/{fan_out}"]


def test_without_fsync_none_is_asked_for(
    open_here: Open, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = L2Driver(open_here())
    monkeypatch.setattr(os, "fsync", lambda fd: pytest.fail("synced"))
    put(driver, memory, 2)


def test_eight_writers_never_exceed_the_capacity(
    open_here: Open, root: Path, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = 5
    adapter = open_here(num_workers=8, max_capacity_gb=(room * OBJECT_BYTES + 100) / 2**30)
    barrier = threading.Barrier(room)
    create = ObjectIO.create
    on_disk: list[int] = []

    def create_together(self: ObjectIO, path: str, data: memoryview) -> None:
        if not on_disk:
            barrier.wait(30)  # as many as there is room for are writing at once, the others are turned away meanwhile
        create(self, path, data)
        on_disk.append(len(data))

    monkeypatch.setattr(ObjectIO, "create", create_together)
    driver = L2Driver(adapter)
    keys = [object_key(number) for number in range(40)]
    outcomes = driver.store(*((key, memory.sealed(key, b"x" * (OBJECT_BYTES - HEADER_BYTES))) for key in keys))
    assert outcomes.count(DONE) == room
    assert outcomes.count(REJECTED) == 40 - room
    assert sum(on_disk) == sum(path.stat().st_size for path in root.rglob("*.kv")) == room * OBJECT_BYTES
    assert adapter.counters() == {
        "objects": room, "bytes": room * OBJECT_BYTES, "recovering": 0, "foreign": 0, "other_version": 0, "damaged": 0,
        "rejected_full": 40 - room,
    }  # fmt: skip
    driver.delete(*keys)
    assert driver.store((keys[-1], memory.sealed(keys[-1], b"x"))) == (DONE,)


@pytest.fixture
def small_disk(root: Path) -> Iterator[Path]:
    """A file system of 64 KiB at `root`."""
    root.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", root], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield root
    subprocess.run(["umount", "--lazy", root], check=True)


@pytest.mark.parametrize("direct", [False, True])
def test_a_full_disk_rejects_and_keeps_what_it_has(
    small_disk: Path, open_here: Open, memory: BorrowedMemory, direct: bool
) -> None:
    adapter = open_here(use_odirect=direct)
    driver = L2Driver(adapter)
    keys = [object_key(number) for number in range(20)]
    outcomes = driver.store(*((key, memory.sealed(key, b"x" * 8_000)) for key in keys))
    assert 0 < outcomes.count(DONE) < 20
    assert outcomes.count(DONE) + outcomes.count(REJECTED) == 20
    assert adapter.counters()["rejected_full"] == outcomes.count(REJECTED)
    assert list((small_disk / ".tmp").rglob("*.tmp")) == []
    for key, outcome in zip(keys, outcomes, strict=True):
        buffer = memory.lend(HEADER_BYTES + 8_000)
        assert driver.load((key, buffer)) == ((DONE,) if outcome is DONE else (Outcome.MISSING,))
        assert outcome is not DONE or check(buffer.view, key).outcome is DONE
    stored = [key for key, outcome in zip(keys, outcomes, strict=True) if outcome is DONE]
    assert set(driver.delete(*stored)) == {DONE}
    assert driver.store((keys[0], memory.sealed(keys[0], b"x" * 8_000))) == (DONE,)
    adapter.close(30)


def test_a_file_larger_than_is_allowed_is_rejected(open_here: Open, root: Path, memory: BorrowedMemory) -> None:
    driver = L2Driver(open_here())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    key, small = object_key(0), object_key(1)
    buffers = memory.sealed(key, b"x" * 50_000), memory.sealed(small, b"x")
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        assert driver.store((key, buffers[0]), (small, buffers[1])) == (REJECTED, DONE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((root / ".tmp").rglob("*.tmp")) == []


@pytest.mark.parametrize(
    ("number", "outcome"),
    [(errno.EDQUOT, REJECTED), (errno.ENOSPC, REJECTED), (errno.EIO, FAILED), (errno.EROFS, FAILED)],
)
def test_what_the_system_says_becomes_an_outcome(
    open_here: Open, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch, number: int, outcome: Outcome
) -> None:
    driver = L2Driver(open_here())

    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", refuse)
    key = object_key(0)
    assert driver.store((key, memory.sealed(key, b"x"))) == (outcome,)
    monkeypatch.undo()
    assert driver.store((key, memory.sealed(key, b"x"))) == (DONE,)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT])
def test_what_passes_by_itself_is_tried_again(
    open_here: Open, root: Path, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    driver = L2Driver(open_here())
    faults = [OSError(number, os.strerror(number)) for _ in range(2)]
    pwrite, preadv = os.pwrite, os.preadv

    def write(*arguments: Any) -> int:
        if faults:
            raise faults.pop()
        return pwrite(*arguments)

    def read(*arguments: Any) -> int:
        if faults:
            raise faults.pop()
        return preadv(*arguments)

    monkeypatch.setattr(os, "pwrite", write)
    monkeypatch.setattr(os, "preadv", read)
    key = object_key(0)
    assert driver.store((key, memory.sealed(key, payload_of(0, 5_000)))) == (DONE,)
    assert faults == []
    assert list((root / ".tmp").rglob("*.tmp")) == []
    faults.append(OSError(number, os.strerror(number)))
    buffer = memory.lend(HEADER_BYTES + 5_000)
    assert driver.load((key, buffer)) == (DONE,)
    assert check(buffer.view, key).outcome is DONE
    assert counted(driver) == (1, HEADER_BYTES + 5_000)


@pytest.mark.parametrize("direct", [False, True])
def test_writes_and_reads_that_come_in_pieces_are_put_together(
    open_here: Open, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    pwrite, preadv, most = os.pwrite, os.preadv, 8192

    def write_some(fd: int, data: memoryview, at: int) -> int:
        return pwrite(fd, data[:most] if len(data) > most else data, at)

    def read_some(fd: int, buffers: list[memoryview], at: int) -> int:
        (buffer,) = buffers
        return preadv(fd, [buffer[:most] if len(buffer) > most else buffer], at)

    monkeypatch.setattr(os, "pwrite", write_some)
    monkeypatch.setattr(os, "preadv", read_some)
    driver = L2Driver(open_here(use_odirect=direct))
    key = object_key(0)
    assert driver.store((key, memory.sealed(key, payload_of(0, 100_001)))) == (DONE,)
    buffer = memory.lend(HEADER_BYTES + 100_001)
    assert driver.load((key, buffer)) == (DONE,)
    assert check(buffer.view, key).outcome is DONE


def test_where_o_direct_is_not_taken_files_are_buffered_and_one_warning_says_so(
    open_here: Open, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    system_open = os.open

    def without_direct(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return system_open(path, flags, *rest)

    monkeypatch.setattr(os, "open", without_direct)
    driver = L2Driver(open_here(use_odirect=True))
    put(driver, memory, 3)
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "O_DIRECT" in warnings[0].getMessage()


CHILD = """
import sys
from lmcache_core import StoreItem
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key, payload_of
from lmcache_l2_fs.adapter import open_fs
from lmcache_l2_fs.config import FsSettings

memory = BorrowedMemory(64 * 2**20)
adapter = open_fs(FsSettings(base_path=sys.argv[1], num_workers=4), adapter_context(memory))
batch = [StoreItem(object_key(n), memory.sealed(object_key(n), payload_of(n, 50_000))) for n in range(1_000)]
adapter.submit_store(batch)
print("storing", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("files_before", [1, 40, 200])
def test_after_a_kill_while_storing_the_index_is_what_is_on_disk_and_each_file_is_whole(
    open_here: Open, root: Path, memory: BorrowedMemory, files_before: int
) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == b"storing\n"
        while len(list(root.rglob("*.kv"))) < files_before:
            assert child.poll() is None
        child.send_signal(signal.SIGKILL)
    unfinished = list((root / ".tmp").rglob("*.tmp"))
    adapter = open_here()
    driver = L2Driver(adapter)
    files = list(root.rglob("*.kv"))
    assert files_before <= len(files) < 1_000, "it was to be killed in the middle"
    assert counted(driver) == (len(files), sum(path.stat().st_size for path in files))
    end = time.monotonic() + WAIT_SECONDS  # it is known what is there before what is unfinished is removed
    while any(path.exists() for path in unfinished):
        assert time.monotonic() < end
        time.sleep(0.002)
    assert adapter.counters()["foreign"] == 0
    listed = driver.keys(100)
    assert len(listed) == len(files)
    buffer = memory.lend(HEADER_BYTES + 50_000)
    for key in listed:
        assert driver.load((key, buffer)) == (DONE,)
        assert check(buffer.view, key).outcome is DONE
