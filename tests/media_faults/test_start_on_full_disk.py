"""A directory on a full file system is opened, serves what it has, and stores again once there is room."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from lmcache_core import HEADER_BYTES, BorrowedBuffer, L2Adapter, ObjectKey, Outcome
from lmcache_devkit import BorrowedMemory, L2Driver, adapter_context, object_key, payload_of
from lmcache_l2_fs.adapter import open_fs
from lmcache_l2_fs.config import FsSettings
from lmcache_l2_fs_native.config import FsNativeSettings
from lmcache_l2_fs_native.opening import open_fs_native
from tests.media_faults.medium import small_file_system

PAYLOAD = 100_000


def opened_fs(root: Path, memory: BorrowedMemory) -> L2Adapter:
    return open_fs(FsSettings(base_path=root), adapter_context(memory))


def opened_fs_native(root: Path, memory: BorrowedMemory) -> L2Adapter:
    return open_fs_native(FsNativeSettings(base_path=root), adapter_context(memory))


@pytest.mark.parametrize("opened", [opened_fs, opened_fs_native])
def test_it_starts_serves_and_stores_again(
    opened: Callable[[Path, BorrowedMemory], L2Adapter], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = BorrowedMemory(2**22)

    def item(number: int) -> tuple[ObjectKey, BorrowedBuffer]:
        return object_key(number), memory.sealed(object_key(number), payload_of(number, PAYLOAD))

    with small_file_system(tmp_path, 2**20) as root:
        before = L2Driver(opened(root / "kv", memory))
        assert before.store(item(0)) == (Outcome.DONE,)
        before.close(10)
        fill(root / "ballast")
        after = L2Driver(opened(root / "kv", memory))
        assert "is full" in caplog.text
        assert after.load((object_key(0), memory.lend(HEADER_BYTES + PAYLOAD))) == (Outcome.DONE,)
        assert after.store(item(1)) == (Outcome.REJECTED,)
        (root / "ballast").unlink()
        assert after.store(item(1)) == (Outcome.DONE,)
        after.close(10)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
