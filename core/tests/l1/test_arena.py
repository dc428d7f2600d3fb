"""L1's memory: private to its owner, marked as alive, and an error where it is not available."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lmcache_client.errors import ResourceError
from lmcache_core.l1.arena import (
    SEGMENT_PREFIX,
    SHM_ROOT,
    anonymous_arena,
    remove_stale_segments,
    shared_arena,
    shared_memory_shortage,
)
from lmcache_core.l1.pages import anonymous_huge_pages_refusal, shared_huge_pages_refusal

MIB = 1 << 20


@pytest.fixture
def name() -> str:
    return f"test-{uuid.uuid4().hex}"


def test_the_segment_belongs_to_its_owner_alone(name: str) -> None:
    arena = shared_arena(MIB, name)
    path = SHM_ROOT / f"{SEGMENT_PREFIX}{name}"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size == MIB
    assert arena.segment == path.name
    arena.close()
    assert not path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which root alone may")
@pytest.mark.parametrize("mode", ["O_RDONLY", "O_WRONLY", "O_RDWR"])
def test_another_user_cannot_open_it(name: str, mode: str) -> None:
    old = os.umask(0)
    try:
        arena = shared_arena(MIB, name)
    finally:
        os.umask(old)
    script = (
        f"import os; os.setresuid(23456, 23456, 23456); os.open({str(SHM_ROOT / SEGMENT_PREFIX) + name!r}, os.{mode})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    arena.close()
    assert "PermissionError" in done.stderr


def test_the_region_is_the_segment(name: str) -> None:
    arena = shared_arena(MIB, name)
    assert arena.back(0, MIB)
    arena.region.view[4096:4101] = b"hello"
    with (SHM_ROOT / f"{SEGMENT_PREFIX}{name}").open("rb") as file:
        file.seek(4096)
        assert file.read(5) == b"hello"
    arena.close()


def test_a_live_server_keeps_its_segment(name: str) -> None:
    arena = shared_arena(MIB, name)
    remove_stale_segments()
    assert (SHM_ROOT / f"{SEGMENT_PREFIX}{name}").exists()
    with pytest.raises(ResourceError, match="alive; choose another --shm-name"):
        shared_arena(MIB, name)
    arena.close()


def test_the_segment_of_a_killed_server_is_removed(name: str) -> None:
    script = (
        "import os, signal; from lmcache_core.l1.arena import shared_arena\n"
        f"arena = shared_arena({MIB}, {name!r}); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    path = SHM_ROOT / f"{SEGMENT_PREFIX}{name}"
    assert path.exists(), "the killed process should have left it behind"
    assert remove_stale_segments() >= 1
    assert not path.exists()


def test_segments_of_other_programs_are_left_alone() -> None:
    other = SHM_ROOT / f"lmcache_l1_pool_{uuid.uuid4().hex}"
    other.write_bytes(b"x")
    remove_stale_segments()
    assert other.exists()
    other.unlink()


def test_pages_are_allocated_when_they_are_backed(name: str) -> None:
    arena = shared_arena(64 * MIB, name)
    path = SHM_ROOT / f"{SEGMENT_PREFIX}{name}"
    assert path.stat().st_blocks == 0
    assert arena.back(0, 4 * MIB)
    assert path.stat().st_blocks * 512 == 4 * MIB
    arena.close()


def test_an_arena_that_does_not_fit_is_named_with_its_remedy() -> None:
    shortage = shared_memory_shortage(1 << 60)
    assert shortage is not None
    assert "l1_size_gb" in shortage
    assert shared_memory_shortage(MIB) is None


@pytest.fixture
def mount_tmpfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """`mount_tmpfs(options)`: segments are made on a tmpfs of this test's own."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", tmp_path], check=False, capture_output=True
        )
        if done.returncode:
            pytest.skip("needs the right to mount a tmpfs")
        mounted.append(tmp_path)
        monkeypatch.setattr("lmcache_core.l1.arena.SHM_ROOT", tmp_path)
        return tmp_path

    yield mount
    for path in mounted:
        subprocess.run(["umount", path], check=True)


def test_a_full_file_system_is_an_answer_and_not_a_signal(mount_tmpfs: Callable[[str], Path]) -> None:
    """A tmpfs of 1 MiB with an arena of 8: the file can be made, its pages cannot."""
    mount_tmpfs("size=1m")
    arena = shared_arena(8 * MIB, "full")
    assert arena.back(0, MIB // 2)
    assert not arena.back(MIB, 4 * MIB)
    assert arena.back(0, MIB // 2), "what is there needs nothing new"
    assert arena.backed_bytes == MIB // 2
    arena.region.view[: MIB // 2] = bytes(MIB // 2)
    arena.close()


def test_a_full_file_system_is_not_asked_again_for_a_while(
    mount_tmpfs: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    mount_tmpfs("size=1m")
    arena = shared_arena(8 * MIB, "full")
    asked: list[int] = []
    allocate = os.posix_fallocate

    def watched(descriptor: int, offset: int, length: int) -> None:
        asked.append(offset)
        allocate(descriptor, offset, length)

    monkeypatch.setattr("lmcache_core.l1.arena.FULL_SECONDS", 60.0)
    monkeypatch.setattr(os, "posix_fallocate", watched)
    assert not arena.back(MIB, 4 * MIB)
    assert not arena.back(0, MIB // 2)
    assert arena.grow(MIB, MIB) is None
    assert asked == [MIB]
    arena.close()


def test_only_what_is_not_there_is_allocated(name: str) -> None:
    arena = shared_arena(16 * MIB, name)
    path = SHM_ROOT / f"{SEGMENT_PREFIX}{name}"
    assert arena.grow(8 * MIB, 4 * MIB) == 4 * MIB
    assert arena.back(6 * MIB, MIB)
    assert (arena.backed_bytes, arena.requested_end) == (5 * MIB, 7 * MIB)
    assert arena.grow(8 * MIB, 4 * MIB) == 2 * MIB, "up to what is there"
    assert arena.grow(8 * MIB, 4 * MIB) == MIB
    assert arena.grow(8 * MIB, 4 * MIB) == 0
    assert arena.backed_bytes == path.stat().st_blocks * 512 == 8 * MIB
    assert arena.grow(99 * MIB, 99 * MIB) == 8 * MIB, "not beyond its end"
    arena.close()


def mapped_kib(address: int, field: str) -> int:
    """A figure of /proc/self/smaps about the mapping that an address lies in."""
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            found = first <= address < last
        elif found and line.startswith(field):
            return int(line.split()[1])
    return 0


def test_a_segment_of_huge_pages(
    mount_tmpfs: Callable[[str], Path], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    root = mount_tmpfs("size=64m,huge=advise")
    if shared_huge_pages_refusal(root):
        pytest.skip("this kernel gives shared memory no huge pages")
    arena = shared_arena(16 * MIB, name, huge=True)
    assert not caplog.records
    assert arena.grow(8 * MIB, 8 * MIB) == 8 * MIB
    assert mapped_kib(arena.region.address, "ShmemPmdMapped") == 8 * 1024
    assert (root / f"{SEGMENT_PREFIX}{name}").stat().st_blocks * 512 == 8 * MIB
    arena.close()


def test_a_full_file_system_of_huge_pages_is_an_answer_too(mount_tmpfs: Callable[[str], Path]) -> None:
    mount_tmpfs("size=4m,huge=advise")
    arena = shared_arena(16 * MIB, "full", huge=True)
    assert arena.back(0, 2 * MIB)
    assert not arena.back(2 * MIB, 8 * MIB)
    arena.region.view[: 2 * MIB] = bytes(2 * MIB)
    arena.close()


def test_huge_pages_that_are_not_available_are_named_with_the_remedy(
    mount_tmpfs: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    root = mount_tmpfs("size=16m,huge=never")
    arena = shared_arena(4 * MIB, "small", huge=True)
    assert f"mount -o remount,huge=advise {root}" in caplog.text
    assert arena.back(0, 4 * MIB)
    arena.close()


def test_anonymous_memory_of_huge_pages() -> None:
    arena = anonymous_arena(64 * MIB, huge=True)
    assert arena.grow(64 * MIB, 64 * MIB) == 64 * MIB
    huge = mapped_kib(arena.region.address + 32 * MIB, "AnonHugePages")
    reserved = mapped_kib(arena.region.address + 32 * MIB, "Private_Hugetlb")
    if anonymous_huge_pages_refusal() is None:
        assert huge + reserved > 0
    arena.close()


def test_reserved_huge_pages_are_whole_pages() -> None:
    """An arena of reserved pages is a little smaller rather than one that cannot be unmapped."""
    arena = anonymous_arena(5 * MIB, huge=True)
    assert arena.size_bytes in (4 * MIB, 5 * MIB)
    address = arena.region.address
    arena.region.view[:3] = b"abc"
    arena.close()
    assert mapped_kib(address, "Private_Hugetlb") == 0


def test_anonymous_memory_is_allocated_ahead_as_well() -> None:
    arena = anonymous_arena(32 * MIB)
    assert arena.grow(16 * MIB, 16 * MIB) == 16 * MIB
    assert mapped_kib(arena.region.address, "Rss") >= 16 * 1024
    arena.region.view[16 * MIB - 3 : 16 * MIB] = b"abc"
    assert arena.back(0, 32 * MIB)
    assert arena.backed_bytes == 32 * MIB
    assert arena.grow(32 * MIB, 16 * MIB) == 0
    arena.close()


def test_anonymous_memory_needs_no_backing() -> None:
    arena = anonymous_arena(MIB)
    assert arena.segment is None
    assert arena.back(0, MIB)
    arena.region.view[:3] = b"abc"
    arena.close()


def test_who_allocates_while_the_arena_is_closed_has_its_memory_until_it_is_done(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.listdir("/proc/self/fd")
    arena, allocate, open_meanwhile = shared_arena(4 * MIB, name), os.posix_fallocate, list[bool]()

    def slow(descriptor: int, offset: int, length: int) -> None:
        arena.close()
        open_meanwhile.append(os.fstat(descriptor).st_size == 4 * MIB)  # and no other file has its number
        allocate(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", slow)
    assert arena.back(0, MIB)
    assert open_meanwhile == [True]
    assert os.listdir("/proc/self/fd") == before
    assert not (SHM_ROOT / f"{SEGMENT_PREFIX}{name}").exists()
    assert not arena.back(MIB, MIB), "closed"
    assert arena.grow(4 * MIB, MIB) is None


def test_closing_leaves_no_descriptor(name: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    shared_arena(MIB, name).close()
    assert len(os.listdir("/proc/self/fd")) == before
