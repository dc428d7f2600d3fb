"""Files that NIXL moves: lengths, full disks, other adapters' files, and what is left open."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lmcache_core import HEADER_BYTES, BorrowedBuffer, Outcome, ResourceError, check, media_path
from lmcache_devkit import BorrowedMemory, L2Driver, adapter_context, object_key, payload_of
from lmcache_devkit.l2.rig import OBJECT_BYTES, PAYLOAD_BYTES
from lmcache_devkit.l2_suite import put
from lmcache_l2_nixl.open_file import OpenFile
from lmcache_nixl_agent.agent import NixlAgent
from plugins.l2_nixl.tests.conftest import OpenHere
from plugins.l2_nixl.tests.test_pool import full, nothing, yes

pytest.importorskip("nixl", reason="no build of NIXL is installed")

DONE, MISSING, REJECTED, DAMAGED = Outcome.DONE, Outcome.MISSING, Outcome.REJECTED, Outcome.DAMAGED


@pytest.mark.parametrize("direct", ["false", "true"])
def test_an_object_may_be_shorter_than_a_buffer_that_says_so(
    open_files: OpenHere, memory: BorrowedMemory, direct: str
) -> None:
    driver = open_files({"use_direct_io": direct})
    (key,) = put(driver, memory, 1)
    buffer = BorrowedBuffer(*memory.lend(OBJECT_BYTES + 5000)[:3], at_most=True)
    assert driver.load((key, buffer)) == (DONE,)
    assert check(buffer.view, key, at_most=True).outcome is DONE
    assert buffer.view[HEADER_BYTES:OBJECT_BYTES] == payload_of(0, PAYLOAD_BYTES)
    assert bytes(buffer.view[OBJECT_BYTES:]) == b"\xee" * 5000, "nothing is written behind the object"
    short = BorrowedBuffer(*memory.lend(OBJECT_BYTES - 1)[:3], at_most=True)
    assert driver.load((key, short)) == (DAMAGED,)


def test_files_are_where_every_adapter_of_files_looks(open_files: OpenHere, memory: BorrowedMemory, root: Path) -> None:
    driver = open_files()
    (key,) = put(driver, memory, 1)
    file = root / media_path(key)
    assert file.stat().st_size == OBJECT_BYTES
    assert file.stat().st_mode & 0o777 == 0o600
    driver.close(30)
    fs = pytest.importorskip("lmcache_l2_fs.adapter")
    settings = pytest.importorskip("lmcache_l2_fs.config").FsSettings(base_path=root)
    other = L2Driver(fs.open_fs(settings, adapter_context(memory, name="fs")))
    try:
        assert other.load((key, memory.lend(OBJECT_BYTES))) == (DONE,)
    finally:
        other.close(30)


def test_a_full_disk_rejects_and_leaves_nothing(
    open_files: OpenHere, memory: BorrowedMemory, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = open_files()
    key = object_key(1)
    item = (key, memory.sealed(key, payload_of(1, PAYLOAD_BYTES)))
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        assert driver.store(item) == (REJECTED,)
    assert not list(root.rglob("*.kv"))
    assert not list(root.rglob("*.*.tmp"))
    assert driver.usage() == (0, None, 0)
    assert driver.store(item) == (DONE,)


def test_a_file_that_was_cut_while_it_is_read_is_damaged(
    open_files: OpenHere, memory: BorrowedMemory, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = open_files()
    (key,) = put(driver, memory, 1)
    find = OpenFile.find

    def cut(self: OpenFile) -> None:
        find(self)
        os.truncate(root / media_path(key), OBJECT_BYTES - 100)

    with monkeypatch.context() as patched:
        patched.setattr(OpenFile, "find", cut)
        assert driver.load((key, memory.lend(OBJECT_BYTES))) == (DAMAGED,)
    assert driver.has(key) == (MISSING,)


def test_what_nixl_says_it_moved_and_did_not_is_not_a_hit(
    open_files: OpenHere, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = open_files()
    (loaded,) = put(driver, memory, 1)
    with monkeypatch.context() as patched:
        patched.setattr(NixlAgent, "begin", nothing)
        patched.setattr(NixlAgent, "has_ended", yes)
        (stored,) = put(driver, memory, 1, first=1)
        outcomes = driver.verified_load((loaded, memory.lend(OBJECT_BYTES)))
    assert outcomes[0] in (Outcome.FOREIGN, DAMAGED)
    outcomes = driver.verified_load((stored, memory.lend(OBJECT_BYTES)))
    assert outcomes[0] in (Outcome.FOREIGN, DAMAGED)
    assert driver.has(loaded, stored) == (MISSING, MISSING)


def open_below(root: Path, suffix: str) -> list[str]:
    """Files below a folder that this process has open."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(link))
        except FileNotFoundError:
            pass  # closed meanwhile, by another thread of this process
    return [path for path in found if path.startswith(f"{root}/") and suffix in path]


def test_no_file_stays_open(open_files: OpenHere, memory: BorrowedMemory, root: Path) -> None:
    driver = open_files({"use_direct_io": True})
    keys = put(driver, memory, 20)
    for key in keys:
        assert driver.load((key, memory.lend(OBJECT_BYTES))) == (DONE,)
        assert driver.load((key, memory.lend(OBJECT_BYTES - 1))) == (DAMAGED,)
    assert open_below(root, ".kv") == []


def test_what_is_in_the_way_is_named_as_it_was_written(open_files: OpenHere, root: Path) -> None:
    open_files()
    with pytest.raises(ResourceError, match=r"nixl: backend_params.file_path '.*' is in use by server"):
        open_files()


def test_without_persistence_an_orderly_stop_removes_the_objects(
    open_files: OpenHere, memory: BorrowedMemory, root: Path
) -> None:
    driver = open_files(persist_enabled=False)
    put(driver, memory, 2)
    assert len(list(root.rglob("*.kv"))) == 2
    driver.close(30)
    assert not list(root.rglob("*.kv"))


def test_what_is_not_to_be_created_is_not(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    file = OpenFile(str(taken), direct=False, splits=False)
    with pytest.raises(FileExistsError):
        file.create(10)
    file.close()
    link = tmp_path / "link"
    link.symlink_to(taken)
    followed = OpenFile(str(link), direct=False, splits=False)
    with pytest.raises(OSError) as refused:
        followed.find()
    assert refused.value.errno == errno.ELOOP
    followed.close()
    folder = OpenFile(str(tmp_path), direct=False, splits=False)
    folder.find()
    assert folder.size is None
    folder.close()
