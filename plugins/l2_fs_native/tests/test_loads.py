"""What a load brings is verified on the way, and nothing that is not the object is ever DONE."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmcache_core import HEADER_BYTES, Outcome, check, media_path
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key, payload_of
from lmcache_devkit.l2_driver import L2Driver
from lmcache_devkit.l2_suite import OBJECT_BYTES, counted, put
from lmcache_l2_fs_native.adapter import FsNativeAdapter
from lmcache_native.io import READ_FILE
from plugins.l2_fs_native.tests.gated_engine import gate_engines

DONE, MISSING, REJECTED, FAILED = Outcome.DONE, Outcome.MISSING, Outcome.REJECTED, Outcome.FAILED
DAMAGED, FOREIGN = Outcome.DAMAGED, Outcome.FOREIGN
Open = Callable[..., FsNativeAdapter]


def flip(path: Path, at: int, change: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(1)[0]
        file.seek(at)
        file.write(bytes([old ^ change]))


regions = st.one_of(
    st.integers(0, 120 + 32 + 64),  # fields of the header and the key
    st.integers(200, HEADER_BYTES - 17),  # padding
    st.integers(HEADER_BYTES - 16, HEADER_BYTES - 1),  # the page's digest
    st.integers(HEADER_BYTES, OBJECT_BYTES - 1),  # payload
)


@pytest.mark.parametrize("direct", [False, True])
def test_a_file_with_one_changed_byte_is_refused_by_the_adapter_itself(
    open_here: Open, root: Path, memory: BorrowedMemory, io_engine: str, direct: bool
) -> None:
    driver = L2Driver(open_here(io_engine=io_engine, use_odirect=direct))
    keys = put(driver, memory, 3)
    buffer = memory.lend(OBJECT_BYTES)

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.sampled_from(keys), regions, st.integers(1, 255))
    def refused(key: object, at: int, change: int) -> None:
        path = root / media_path(key)  # type: ignore[arg-type]
        flip(path, at, change)
        assert driver.load((key, buffer))[0] in (DAMAGED, FOREIGN)  # type: ignore[arg-type]
        flip(path, at, change)
        assert driver.load((key, buffer)) == (DONE,)  # type: ignore[arg-type]
        assert check(buffer.view, key).outcome is DONE  # type: ignore[arg-type]

    refused()


@pytest.mark.parametrize("payload_bytes", [1, 4095, 4096, 4097, 2**20, 2**20 + 1, 5 * 2**20 - 4096, 5 * 2**20 + 17])
@pytest.mark.parametrize("direct", [False, True])
def test_objects_of_every_length_come_back(
    open_here: Open, memory: BorrowedMemory, io_engine: str, direct: bool, payload_bytes: int
) -> None:
    driver = L2Driver(open_here(io_engine=io_engine, use_odirect=direct))
    key = object_key(0)
    payload = payload_of(0, payload_bytes)
    assert driver.store((key, memory.sealed(key, payload))) == (DONE,)
    buffer = memory.lend(HEADER_BYTES + payload_bytes)
    assert driver.load((key, buffer)) == (DONE,)
    assert buffer.view[HEADER_BYTES:] == payload
    assert check(buffer.view, key).outcome is DONE


@pytest.mark.parametrize("direct", [False, True])
def test_a_buffer_that_is_not_aligned_comes_out_right_and_is_counted(
    open_here: Open, memory: BorrowedMemory, io_engine: str, direct: bool
) -> None:
    adapter = open_here(io_engine=io_engine, use_odirect=direct)
    driver = L2Driver(adapter)
    key = object_key(0)
    whole = memory.sealed(key, payload_of(0, 2**20))
    store, load = memory.lend(whole.length + 4096), memory.lend(whole.length + 4096)
    store, load = (buffer._replace(offset=buffer.offset + 8, length=whole.length) for buffer in (store, load))
    store.view[:] = whole.view
    assert driver.store((key, store)) == (DONE,)
    assert driver.load((key, load)) == (DONE,)
    assert load.view == whole.view
    assert adapter.counters()["engine_bounced"] == (2 if direct else 0)


@pytest.mark.parametrize("length", [1, 100, HEADER_BYTES, OBJECT_BYTES - 1, OBJECT_BYTES + 1, OBJECT_BYTES * 2, 0])
def test_a_file_of_another_length_is_refused(
    open_here: Open, root: Path, memory: BorrowedMemory, io_engine: str, length: int
) -> None:
    driver = L2Driver(open_here(io_engine=io_engine))
    (key,) = put(driver, memory, 1)
    os.truncate(root / media_path(key), length)
    expected = FOREIGN if length == 1 else DAMAGED  # a single letter of our magic is not a sign of ours
    assert driver.load((key, memory.lend(OBJECT_BYTES))) == (expected,)


def test_a_file_of_zeros_is_damaged_as_a_loss_of_power_leaves_it(
    open_here: Open, root: Path, memory: BorrowedMemory
) -> None:
    driver = L2Driver(open_here())
    (key,) = put(driver, memory, 1)
    (root / media_path(key)).write_bytes(bytes(OBJECT_BYTES))
    assert driver.load((key, memory.lend(OBJECT_BYTES))) == (DAMAGED,)


@pytest.mark.parametrize("kind", ["directory", "symlink", "fifo", "file where a directory belongs"])
def test_what_is_not_a_file_is_foreign(
    open_here: Open, root: Path, memory: BorrowedMemory, io_engine: str, kind: str
) -> None:
    key = object_key(0)
    driver = L2Driver(open_here(io_engine=io_engine))
    path = root / media_path(key)
    target = root.parent / "secret"
    target.write_bytes(b"s" * OBJECT_BYTES)
    if kind == "file where a directory belongs":
        path.parent.parent.parent.write_bytes(b"in the way")
    else:
        path.parent.mkdir(parents=True)
        ways: dict[str, Callable[[], None]] = {
            "directory": path.mkdir,
            "symlink": lambda: path.symlink_to(target),
            "fifo": lambda: os.mkfifo(path),
        }
        ways[kind]()
    assert driver.store((key, memory.sealed(key, b"x" * 10_000))) == (REJECTED,)
    buffer = memory.lend(OBJECT_BYTES)
    assert driver.load((key, buffer)) == (FOREIGN,)
    assert b"s" not in bytes(buffer.view), "a link was followed out of the root"
    assert target.read_bytes() == b"s" * OBJECT_BYTES
    assert driver.has(key) == (MISSING,)
    assert counted(driver) == (0, 0)


def test_a_file_that_was_removed_is_missing_and_can_be_stored_again(
    open_here: Open, root: Path, memory: BorrowedMemory
) -> None:
    driver = L2Driver(open_here())
    one, other = put(driver, memory, 2)
    for key in (one, other):
        (root / media_path(key)).unlink()
    assert driver.load((one, memory.lend(OBJECT_BYTES))) == (MISSING,)
    assert driver.delete(other) == (MISSING,)
    assert counted(driver) == (0, 0)
    put(driver, memory, 2)
    assert driver.load((one, memory.lend(OBJECT_BYTES))) == (DONE,)


def test_the_index_does_not_vouch_for_a_disk_that_is_broken(
    open_here: Open, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = gate_engines(monkeypatch)
    adapter = open_here()
    driver = L2Driver(adapter)
    (key,) = put(driver, memory, 1)
    made[0].faults[READ_FILE] = [errno.EIO] * 30
    made[0].batches.clear()
    buffer = memory.lend(OBJECT_BYTES)
    for _ in range(30):
        assert driver.has(key, object_key(99)) == (DONE, MISSING)
        assert driver.load((key, buffer)) == (FAILED,)
    assert len(made[0].batches) == 10  # then the breaker is open
    assert adapter.circuit.openings == 1


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT])
def test_what_passes_by_itself_is_tried_again(
    open_here: Open, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    made = gate_engines(monkeypatch)
    driver = L2Driver(open_here())
    (key,) = put(driver, memory, 1)
    made[0].faults[READ_FILE] = [number, number]
    assert driver.load((key, memory.lend(OBJECT_BYTES))) == (DONE,)
    assert made[0].faults[READ_FILE] == []


@pytest.mark.parametrize(
    ("payload_bytes", "read_ahead_size", "advised_bytes"),
    [
        (16 * 2**20, None, 0),
        (16 * 2**20 + 1, None, 16 * 2**20 + 1 + HEADER_BYTES),
        (2**20, 8192, 8192),
    ],
)
def test_the_kernel_is_advised_what_to_fetch_for_long_files_and_where_that_is_configured(
    open_here: Open, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch,
    payload_bytes: int, read_ahead_size: int | None, advised_bytes: int,
) -> None:  # fmt: skip
    """It fetches advised ranges in single pages, where its own read-ahead takes large ones."""
    engines = gate_engines(monkeypatch)
    driver = L2Driver(open_here(read_ahead_size=read_ahead_size))
    key, length = object_key(0), payload_bytes + HEADER_BYTES
    buffer = memory.lend(length)
    driver.load((key, buffer))
    (read,) = (operation for operation in engines[0].operations if operation[0] == READ_FILE)
    assert read[4] == length
    assert read[-1] == advised_bytes
