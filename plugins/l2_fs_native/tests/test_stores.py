"""A file comes to its name whole, once, and within the room there is; what goes wrong is the outcome of that store."""

from __future__ import annotations

import asyncio
import errno
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmcache_core import HEADER_BYTES, Outcome, StoreItem, media_path
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key, payload_of
from lmcache_devkit.l2_driver import L2Driver
from lmcache_devkit.l2_suite import OBJECT_BYTES, counted, put
from lmcache_l2_fs_native.adapter import FsNativeAdapter
from lmcache_native.async_io import AsyncIo
from lmcache_native.io import WRITE_FILE
from lmcache_object_files.object_files import LOOK_SECONDS
from plugins.l2_fs_native.tests.gated_engine import gate_engines

DONE, MISSING, REJECTED, FAILED = Outcome.DONE, Outcome.MISSING, Outcome.REJECTED, Outcome.FAILED
Open = Callable[..., FsNativeAdapter]


def temporaries(root: Path) -> list[Path]:
    return list((root / ".tmp").rglob("*.tmp"))


def test_many_stores_of_one_key_are_all_done_with_one_file(
    open_here: Open, root: Path, memory: BorrowedMemory, io_engine: str
) -> None:
    driver = L2Driver(open_here(io_engine=io_engine))
    keys = [object_key(number) for number in range(20)]
    items = [StoreItem(key, memory.sealed(key, payload_of(number, 5_000))) for number, key in enumerate(keys)]
    jobs = [driver.adapter.submit_store([item]) for item in items for _ in range(4)]
    assert [driver.finish(job) for job in jobs] == [(DONE,)] * 80
    assert counted(driver) == (20, 20 * (HEADER_BYTES + 5_000))
    assert len(list(root.rglob("*.kv"))) == 20
    assert temporaries(root) == []


def test_a_file_that_appears_while_we_write_is_looked_at_and_not_replaced(
    open_here: Open, root: Path, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = L2Driver(open_here())
    key = object_key(0)
    path = root / media_path(key)
    write_file = AsyncIo.write_file

    async def be_overtaken(self: AsyncIo, *arguments: Any, **named: Any) -> Any:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"another thread was faster")
        return await write_file(self, *arguments, **named)

    monkeypatch.setattr(AsyncIo, "write_file", be_overtaken)
    assert driver.store((key, memory.sealed(key, b"x" * 50))) == (REJECTED,)
    assert path.read_bytes() == b"another thread was faster"
    assert counted(driver) == (0, 0)
    assert temporaries(root) == []


def test_a_damaged_file_is_moved_aside_for_the_new_one(open_here: Open, root: Path, memory: BorrowedMemory) -> None:
    adapter = open_here()
    driver = L2Driver(adapter)
    (key,) = put(driver, memory, 1)
    path = root / media_path(key)
    path.write_bytes(path.read_bytes()[:-1])
    put(driver, memory, 1)
    assert driver.load((key, memory.lend(OBJECT_BYTES))) == (DONE,)
    assert adapter.counters()["damaged"] == 1
    assert len(list((root / ".damaged").iterdir())) == 1


@pytest.mark.parametrize("gone", [".tmp", "the model's", "both"])
def test_directories_that_vanish_are_made_again(
    open_here: Open, root: Path, memory: BorrowedMemory, io_engine: str, gone: str
) -> None:
    driver = L2Driver(open_here(io_engine=io_engine))
    (key,) = put(driver, memory, 1)
    model = media_path(key).split("/")[0]
    for name in {".tmp": [".tmp"], "the model's": [model], "both": [".tmp", model]}[gone]:
        shutil.rmtree(root / name)
    put(driver, memory, 4, first=10)
    assert driver.load((object_key(10), memory.lend(OBJECT_BYTES))) == (DONE,)


def test_where_the_root_has_vanished_stores_fail_and_go_on_when_it_is_back(
    open_here: Open, root: Path, memory: BorrowedMemory
) -> None:
    driver = L2Driver(open_here())
    (key,) = put(driver, memory, 1)
    root.rename(root.with_name("elsewhere"))
    late = object_key(1)
    assert driver.store((late, memory.sealed(late, b"x"))) == (FAILED,)
    assert driver.load((key, memory.lend(OBJECT_BYTES))) == (FAILED,), "it is not missing, but out of reach"
    assert not root.exists(), "files would go to the disk below the mount that is gone"
    root.with_name("elsewhere").rename(root)
    assert driver.store((late, memory.sealed(late, b"x"))) == (DONE,)
    assert driver.load((key, memory.lend(OBJECT_BYTES))) == (DONE,)


@pytest.mark.parametrize(
    ("number", "outcome"),
    [
        (errno.EDQUOT, REJECTED), (errno.ENOSPC, REJECTED), (errno.EFBIG, REJECTED), (errno.EIO, FAILED),
        (errno.EROFS, FAILED), (errno.EMFILE, FAILED),
    ],
)  # fmt: skip
def test_what_the_medium_says_becomes_an_outcome(
    open_here: Open, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch, number: int, outcome: Outcome
) -> None:
    made = gate_engines(monkeypatch)
    adapter = open_here(max_capacity_gb=2 * OBJECT_BYTES / 2**30)
    driver = L2Driver(adapter)
    key = object_key(0)
    made[0].faults[WRITE_FILE] = [number]
    assert driver.store((key, memory.sealed(key, b"x" * (OBJECT_BYTES - HEADER_BYTES)))) == (outcome,)
    assert adapter.counters()["rejected_full"] == int(outcome is REJECTED)
    put(driver, memory, 2)  # the room was given back


def test_a_file_where_a_directory_belongs_is_not_a_fault_of_the_backend(
    open_here: Open, root: Path, memory: BorrowedMemory, io_engine: str
) -> None:
    """Or it would open the circuit, and pause the adapter for all objects."""
    adapter = open_here(io_engine=io_engine)
    driver = L2Driver(adapter)
    (key,) = put(driver, memory, 1)
    driver.delete(key)
    fan_out = (root / media_path(key)).parent
    fan_out.rmdir()
    fan_out.write_bytes(b"in the way")
    for _ in range(20):
        assert driver.store((key, memory.sealed(key, b"x" * 50))) == (REJECTED,)
    assert fan_out.read_bytes() == b"in the way"
    assert adapter.circuit.failures_in_a_row == 0
    assert counted(driver) == (0, 0)
    assert temporaries(root) == []


@pytest.mark.parametrize("written", [True, False])
def test_a_store_that_was_cancelled_is_counted_as_what_it_is(
    open_here: Open, root: Path, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    """The cancellation passes when the engine has answered, and the answer is lost with it: what is there is DONE."""
    adapter = open_here(max_capacity_gb=2 * OBJECT_BYTES / 2**30)
    driver = L2Driver(adapter)
    write_file = AsyncIo.write_file

    async def be_cancelled(self: AsyncIo, *arguments: Any, **named: Any) -> Any:
        if written:
            await write_file(self, *arguments, **named)
        raise asyncio.CancelledError

    put(driver, memory, 1, first=9)
    monkeypatch.setattr(AsyncIo, "write_file", be_cancelled)
    key = object_key(9 if written else 1)
    if written:
        driver.delete(key)
    assert driver.store((key, memory.sealed(key, payload_of(9, OBJECT_BYTES - HEADER_BYTES)))) == (
        DONE if written else FAILED,
    )
    monkeypatch.undo()
    assert driver.has(key) == ((DONE,) if written else (MISSING,))
    assert (root / media_path(key)).exists() is written
    assert counted(driver) == (1, OBJECT_BYTES)
    put(driver, memory, 1, first=2)


@pytest.mark.parametrize("fsync", [False, True])
def test_directories_are_made_before_the_engine_writes_for_nothing(
    open_here: Open, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch, fsync: bool
) -> None:
    made = gate_engines(monkeypatch)
    driver = L2Driver(open_here(fsync=fsync))
    put(driver, memory, 20)
    assert sum(batch.count(WRITE_FILE) for batch in made[0].batches) == 20


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
    small_disk: Path, open_here: Open, memory: BorrowedMemory, io_engine: str, direct: bool
) -> None:
    adapter = open_here(io_engine=io_engine, use_odirect=direct)
    driver = L2Driver(adapter)
    keys = [object_key(number) for number in range(20)]
    outcomes = driver.store(*((key, memory.sealed(key, b"x" * 8_000)) for key in keys))
    assert 0 < outcomes.count(DONE) < 20
    assert outcomes.count(DONE) + outcomes.count(REJECTED) == 20
    assert adapter.counters()["rejected_full"] == outcomes.count(REJECTED)
    assert temporaries(small_disk) == []
    for key, outcome in zip(keys, outcomes, strict=True):
        buffer = memory.lend(HEADER_BYTES + 8_000)
        assert driver.load((key, buffer)) == ((DONE,) if outcome is DONE else (MISSING,))
    stored = [key for key, outcome in zip(keys, outcomes, strict=True) if outcome is DONE]
    assert set(driver.delete(*stored)) == {DONE}
    assert driver.store((keys[0], memory.sealed(keys[0], b"x" * 8_000))) == (DONE,)
    adapter.close(30)


def test_a_file_larger_than_is_allowed_is_rejected(
    open_here: Open, root: Path, memory: BorrowedMemory, io_engine: str
) -> None:
    driver = L2Driver(open_here(io_engine=io_engine))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    key, small = object_key(0), object_key(1)
    buffers = memory.sealed(key, b"x" * 50_000), memory.sealed(small, b"x")
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        assert driver.store((key, buffers[0]), (small, buffers[1])) == (REJECTED, DONE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert temporaries(root) == []


@pytest.mark.parametrize("gone", ["the directory", "its lock"])
def test_nothing_is_written_into_a_directory_that_another_server_took(
    open_here: Open, root: Path, memory: BorrowedMemory, io_engine: str, gone: str
) -> None:
    first = L2Driver(open_here(io_engine=io_engine, persist_enabled=False, boot_id="first"))
    put(first, memory, 2)
    if gone == "the directory":
        shutil.rmtree(root)
    else:
        (root / ".lock").unlink()
    second = L2Driver(open_here(io_engine=io_engine, boot_id="second"))
    keys = put(second, memory, 4)
    files = len(list(root.rglob("*.kv")))
    time.sleep(LOOK_SECONDS)
    for number in range(10, 14):
        assert first.store((object_key(number), memory.sealed(object_key(number), b"x"))) == (FAILED,)
    assert first.delete(keys[0]) == (FAILED,)
    first.adapter.close(30)
    assert len(list(root.rglob("*.kv"))) == files == 4
    assert second.has(*keys) == (DONE,) * 4
