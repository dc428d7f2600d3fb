"""Who owns a directory, what is found in it, and what is left behind."""

from __future__ import annotations

import gc
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lmcache_core import HashChain, KeySpace, ObjectKey, Outcome, ResourceError, media_path
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key
from lmcache_devkit.l2_driver import WAIT_SECONDS, L2Driver
from lmcache_devkit.l2_suite import OBJECT_BYTES, counted, put
from lmcache_l2_fs.adapter import FsAdapter, open_fs
from lmcache_l2_fs.config import FsSettings

DONE = Outcome.DONE
Open = Callable[..., FsAdapter]


def test_a_second_server_is_refused_with_the_owners_name_and_a_remedy(
    open_here: Open, root: Path, memory: BorrowedMemory
) -> None:
    first = open_here(boot_id="first-boot")
    owner = json.loads((root / ".lock").read_text())
    assert owner["instance_id"] == "instance-of-tests"
    assert owner["boot_id"] == "first-boot"
    assert owner["pid"] == os.getpid()
    assert owner["host"] == socket.gethostname()
    assert owner["started"]
    keys = put(L2Driver(first), memory, 3)
    with pytest.raises(ResourceError) as refused:
        open_here()
    message = str(refused.value)
    for part in (str(root), "instance-of-tests", f"pid {os.getpid()}", "first-boot", "a directory of its own"):
        assert part in message
    assert "\n" not in message
    assert json.loads((root / ".lock").read_text()) == owner
    assert L2Driver(first).has(*keys) == (DONE,) * 3
    first.close(30)
    assert L2Driver(open_here()).has(*keys) == (DONE,) * 3


def test_a_server_in_another_process_is_refused_too(open_here: Open, root: Path) -> None:
    open_here()
    code = (
        "import fcntl, os, sys\n"
        "fcntl.flock(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
    )  # fmt: skip
    other = subprocess.run(
        [sys.executable, "-c", code, str(root / ".lock")], capture_output=True, text=True, timeout=60
    )
    assert "BlockingIOError" in other.stderr


def test_an_owner_that_has_not_said_who_it_is_is_still_the_owner(root: Path, open_here: Open) -> None:
    import fcntl

    root.mkdir()
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ResourceError, match="another process"):
            open_here()


@pytest.mark.parametrize("below", ["file", "file/kv"])
def test_a_path_that_cannot_be_a_directory_is_refused_in_one_line(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    settings = FsSettings(base_path=tmp_path / below)
    with pytest.raises(
        ResourceError, match=r"base_path '.*' cannot be used \((File exists|Not a directory): .*name one"
    ) as refused:
        open_fs(settings, adapter_context(BorrowedMemory(4096)))
    assert "\n" not in str(refused.value)


def test_a_read_only_directory_is_refused(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(ResourceError, match="Permission denied"):
        open_fs(FsSettings(base_path=tmp_path), adapter_context(BorrowedMemory(4096)))


def test_what_cannot_be_opened_leaves_nothing_taken(
    open_here: Open, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = descriptors()

    def no_links(*_: object, **__: object) -> None:
        raise OSError(18, os.strerror(18))

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", no_links)
        with pytest.raises(ResourceError, match="relative_tmp_dir is on another file system"):
            open_here()
    assert descriptors() == before
    assert not fs_threads()
    open_here()


def test_a_hundred_opens_and_closes_leave_no_descriptor_and_no_thread(open_here: Open, memory: BorrowedMemory) -> None:
    for warm_up in (True, False):
        gc.collect()  # what earlier tests left
        before = (descriptors(), threading.active_count())
        for _ in range(5 if warm_up else 100):
            adapter = open_here()
            put(L2Driver(adapter), memory, 1)
            adapter.close(30)
            adapter.completions().close()  # type: ignore[attr-defined]  # the fixture still holds the adapter
    assert (descriptors(), threading.active_count()) == before


def test_an_adapter_without_references_has_released_everything(root: Path, memory: BorrowedMemory) -> None:
    gc.collect()
    before = descriptors()
    adapter = open_fs(FsSettings(base_path=root), adapter_context(memory))
    adapter.close(30)
    del adapter
    assert descriptors() == before


def test_reopening_finds_everything_and_its_size(open_here: Open, memory: BorrowedMemory) -> None:
    driver = L2Driver(open_here())
    keys = put(driver, memory, 30)
    space = KeySpace("другая/модель", 1, 0, "", 16, HashChain.BLAKE3, bytes(16))
    keys.append(ObjectKey(space, bytes(32)))
    assert driver.store((keys[-1], memory.sealed(keys[-1], b"small"))) == (DONE,)
    usage = driver.adapter.usage()
    driver.adapter.close(30)
    driver = L2Driver(open_here())
    assert driver.has(*keys) == (DONE,) * 31
    assert driver.adapter.usage() == usage
    assert set(driver.keys(7)) == set(keys)


def test_files_of_other_names_are_counted_and_left_alone(open_here: Open, root: Path, memory: BorrowedMemory) -> None:
    driver = L2Driver(open_here())
    (key,) = put(driver, memory, 1)
    driver.adapter.close(30)
    home = root / media_path(key)
    foreign = [
        root / "README",
        root / "backup" / "x.kv",
        home.parent.parent / "zz" / "x",
        home.with_suffix(".bak"),
        home.parent / "0.kv",
        home.parent / ("0" * 32 + ".kv") if home.parent.name != "00" else home.parent / ("1" * 32 + ".kv"),
        root / "copy-00000000" / "salt-00000000" / home.parent.name / home.name,
        root / os.fsdecode(b"\xff\xfe"),
    ]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(home.read_bytes())
    adapter = open_here()
    # A directory of another name counts once; of two files with one name, the second is in a wrong folder.
    assert adapter.counters()["foreign"] == len(foreign)
    assert counted(L2Driver(adapter)) == (1, OBJECT_BYTES)
    adapter.close(30)
    assert all(path.read_bytes() == home.read_bytes() for path in foreign)


def test_unfinished_files_of_former_boots_are_removed_and_nothing_else(open_here: Open, root: Path) -> None:
    dead = root / ".tmp" / "dead-boot"
    dead.mkdir(parents=True)
    (dead / f"{'a' * 32}.0.tmp").write_bytes(b"half")
    mixed = root / ".tmp" / "mixed"
    mixed.mkdir()
    (mixed / f"{'b' * 32}.17.tmp").write_bytes(b"half")
    (mixed / "letter.txt").write_bytes(b"mine")
    open_here(boot_id="live")
    end = time.monotonic() + WAIT_SECONDS  # it is known what is there before what is unfinished is removed
    while dead.exists() or (mixed / f"{'b' * 32}.17.tmp").exists():
        assert time.monotonic() < end
        time.sleep(0.002)
    assert {path.relative_to(root / ".tmp").as_posix() for path in (root / ".tmp").rglob("*")} == {
        "live", "mixed", "mixed/letter.txt",
    }  # fmt: skip


def test_close_leaves_no_temporaries(open_here: Open, root: Path, memory: BorrowedMemory) -> None:
    adapter = open_here()
    put(L2Driver(adapter), memory, 3)
    adapter.close(30)
    assert list((root / ".tmp").iterdir()) == []


def test_directories_that_vanish_are_made_again_but_the_root_is_not(
    open_here: Open, root: Path, memory: BorrowedMemory
) -> None:
    driver = L2Driver(open_here(boot_id="b"))
    (key,) = put(driver, memory, 1)
    (root / media_path(key)).unlink()
    (root / media_path(key)).parent.rmdir()
    (root / ".tmp" / "b").rmdir()
    assert driver.store((key, memory.sealed(key, b"x"))) == (DONE,)
    root.rename(root.parent / "moved")
    other = object_key(5)
    assert driver.store((other, memory.sealed(other, b"x"))) == (Outcome.FAILED,)
    assert not root.exists()
    driver.adapter.close(30)


def test_a_directory_that_cannot_be_read_is_a_warning(
    open_here: Open,
    root: Path,
    memory: BorrowedMemory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = L2Driver(open_here())
    keys = put(driver, memory, 2)
    driver.adapter.close(30)
    closed = str((root / media_path(keys[0])).parent)
    system_open = os.open

    def guarded(path: str, *rest: int) -> int:
        if str(path).rstrip("/") == closed:
            raise PermissionError(13, "Permission denied", path)
        return system_open(path, *rest)

    monkeypatch.setattr(os, "open", guarded)
    adapter = open_here()
    assert "Permission denied" in caplog.text
    assert L2Driver(adapter).has(keys[1]) == (DONE,)


def test_only_the_owner_may_read_what_users_said(open_here: Open, root: Path, memory: BorrowedMemory) -> None:
    (key,) = put(L2Driver(open_here()), memory, 1)
    path = root / media_path(key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for parent in (path.parent, path.parent.parent, root):
        assert stat.S_IMODE(parent.stat().st_mode) == 0o700


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def fs_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("l2-fs")]


def test_nothing_is_written_into_a_directory_that_another_server_made_anew(
    open_here: Open, root: Path, memory: BorrowedMemory
) -> None:
    first = L2Driver(open_here(persist_enabled=False))
    put(first, memory, 2)
    shutil.rmtree(root)
    second = L2Driver(open_here())
    keys = put(second, memory, 4)
    other = object_key(9)
    assert first.store((other, memory.sealed(other, b"x"))) == (Outcome.FAILED,)
    assert first.delete(keys[0]) == (Outcome.FAILED,)
    first.adapter.close(30)
    assert len(list(root.rglob("*.kv"))) == 4
    assert second.has(*keys) == (DONE,) * 4
