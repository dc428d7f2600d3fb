"""L1 as a file: this server's alone, empty at first, allocated before it is used, and an error where it is not available."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from lmcache_client.errors import ResourceError
from lmcache_client.memory_calls import allocate_file
from lmcache_core import L1MemoryContext
from lmcache_core.l1.arena import Arena, anonymous_arena
from lmcache_transfer_torch.file_memory import (
    MARK_BYTES,
    SLAB_NAME,
    FileMemorySettings,
    direct_io_refusal,
    open_file_memory,
)

MIB = 1 << 20
ME = {"instance_id": "node-1", "boot_id": "b00"}


def file_arena(size_bytes: int, where: Path, owner: Mapping[str, str], direct_io: bool = False) -> Arena:
    """As a server has it."""
    context = L1MemoryContext(size_bytes, 4096, **owner)
    return Arena(open_file_memory(FileMemorySettings(path=str(where), use_direct_io=direct_io), context))


def test_the_region_is_the_file(tmp_path: Path) -> None:
    arena = file_arena(4 * MIB, tmp_path / "slab", ME)
    region = arena.region
    assert (arena.kind, arena.segment, arena.file) == ("file", None, tmp_path / "slab")
    assert region.is_file
    assert (region.name, region.direct_io, arena.size_bytes) == (None, False, 4 * MIB)
    region.view[MIB : MIB + 5] = b"hello"
    assert region.descriptor is not None
    assert os.pread(region.descriptor, 5, MIB) == b"hello"
    os.pwrite(region.descriptor, b"H", MIB)
    assert bytes(region.view[MIB : MIB + 5]) == b"Hello"
    arena.close()


def test_it_is_allocated_as_a_whole_and_belongs_to_its_owner_alone(tmp_path: Path) -> None:
    arena = file_arena(4 * MIB, tmp_path / "slab", ME)
    found = (tmp_path / "slab").stat()
    assert found.st_blocks * 512 >= 4 * MIB
    assert found.st_mode & 0o777 == 0o600
    assert (arena.backed_bytes, arena.back(0, MIB), arena.grow(4 * MIB, MIB)) == (4 * MIB, True, 0)
    arena.close()


def test_a_stop_leaves_neither_file_nor_descriptor(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    file_arena(MIB, tmp_path, ME).close()
    assert list(tmp_path.iterdir()) == []
    assert os.listdir("/proc/self/fd") == before


def test_a_stop_removes_its_own_file_only(tmp_path: Path) -> None:
    """Another process removed the file of a live server, and another one has that name by now."""
    first = file_arena(MIB, tmp_path / "slab", ME)
    (tmp_path / "slab").unlink()
    second = file_arena(MIB, tmp_path / "slab", ME)
    first.close()
    assert (tmp_path / "slab").exists()
    second.close()
    second.close()
    assert not (tmp_path / "slab").exists()


def test_a_folder_that_is_not_there_is_no_file(tmp_path: Path) -> None:
    """A disk that is not mounted must not become a file of that name on another one."""
    settings = FileMemorySettings(path=f"{tmp_path}/nvme/", use_direct_io=False)
    with pytest.raises(ResourceError, match=rf"gds_l1_path: '{tmp_path}/nvme/' is not a folder; make it, or mount it"):
        open_file_memory(settings, L1MemoryContext(MIB, 4096, "node-1", "b00"))
    assert not list(tmp_path.iterdir())


def test_in_a_folder_it_has_a_name_of_its_own(tmp_path: Path) -> None:
    arena = file_arena(MIB, tmp_path, ME)
    assert arena.file == tmp_path / SLAB_NAME
    arena.close()


def test_a_file_that_is_in_use_is_refused_with_its_owner(tmp_path: Path) -> None:
    arena = file_arena(MIB, tmp_path, ME)
    arena.region.view[:5] = b"bytes"
    with pytest.raises(ResourceError, match=r"in use by server 'node-1' \(pid \d+ on .+, boot b00\); give each server"):
        file_arena(2 * MIB, tmp_path, {"instance_id": "node-2", "boot_id": "b01"})
    assert bytes(arena.region.view[:5]) == b"bytes"
    assert (tmp_path / SLAB_NAME).stat().st_size == MIB + MARK_BYTES
    arena.close()


def test_an_owner_that_has_not_said_who_it_is_keeps_it_as_well(tmp_path: Path) -> None:
    with (tmp_path / "slab").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ResourceError, match="in use by another process that has not said who it is"):
            file_arena(MIB, tmp_path / "slab", ME)


def test_what_a_killed_server_left_is_taken_over_empty(tmp_path: Path) -> None:
    script = (
        "import os, signal; from lmcache_core import L1MemoryContext\n"
        "from lmcache_transfer_torch.file_memory import FileMemorySettings, open_file_memory\n"
        f"context = L1MemoryContext({4 * MIB}, 4096, 'node-1', 'b00')\n"
        f"memory = open_file_memory(FileMemorySettings(path={str(tmp_path)!r}), context)\n"
        "memory.region.view[:] = b'x' * memory.region.length; os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert (tmp_path / SLAB_NAME).read_bytes().startswith(b"xxx"), "the killed process should have left it behind"
    arena = file_arena(2 * MIB, tmp_path, ME)
    assert not any(arena.region.view)
    assert (tmp_path / SLAB_NAME).stat().st_size == 2 * MIB + MARK_BYTES
    arena.close()


def test_a_file_of_another_owner_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "thesis.tex"
    file.write_bytes(b"years of work")
    with pytest.raises(ResourceError, match=r"thesis.tex' is there already and was not made by a server like this one"):
        file_arena(MIB, file, ME)
    assert file.read_bytes() == b"years of work"


@pytest.mark.parametrize("make", ["link", "hard link", "pipe", "no folder", "foreign"])
def test_what_is_not_a_file_of_this_user_alone_is_refused(tmp_path: Path, make: str) -> None:
    target, path = tmp_path / "target", tmp_path / "slab"
    target.touch()
    if make == "link":
        path.symlink_to(target)
    elif make == "hard link":
        path.hardlink_to(target)
    elif make == "pipe":
        os.mkfifo(path)
    elif make == "no folder":
        path = tmp_path / "missing" / "slab"
    elif os.geteuid():
        pytest.skip("only root can give a file away")
    else:
        path.touch()
        os.chown(path, 1, -1)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ResourceError, match=r"^gds_l1_path: '.*slab' (cannot be opened|is not a regular file)"):
        file_arena(MIB, path, ME)
    assert target.read_bytes() == b""
    assert os.listdir("/proc/self/fd") == before


def test_a_server_that_is_just_removing_its_file_is_not_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between our opening of the file and our lock on it, its owner removed it."""
    path, lock, removed = tmp_path / "slab", fcntl.flock, list[int]()

    def late(descriptor: int, operation: int) -> None:
        if not removed:
            removed.append(os.fstat(descriptor).st_ino)
            path.rename(tmp_path / "gone")
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    arena = file_arena(MIB, path, ME)
    assert path.stat().st_ino != removed[0]
    assert (tmp_path / "gone").stat().st_size == 0
    arena.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", tmp_path], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_a_full_disk_is_an_error_at_the_start(small_disk: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(
        ResourceError, match=r"cannot be allocated with 0.0 GiB: No space left .* 0.0 GiB are free there"
    ):
        file_arena(8 * MIB, small_disk, ME)
    assert list(small_disk.iterdir()) == []
    assert os.listdir("/proc/self/fd") == before
    file_arena(MIB, small_disk, ME).close()


def test_a_limit_of_file_sizes_is_named(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MIB, hard))
    try:
        with pytest.raises(ResourceError, match="File too large; raise the limit of file sizes"):
            file_arena(4 * MIB, tmp_path, ME)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_cannot_allocate_ahead_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, length: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("lmcache_transfer_torch.file_memory.allocate_file", refuse)
    with pytest.raises(ResourceError, match="this file system cannot allocate a file ahead or map it; use ext4 or xfs"):
        file_arena(MIB, tmp_path, ME)
    assert list(tmp_path.iterdir()) == []


def test_direct_io_is_a_wish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("lmcache_transfer_torch.file_memory.direct_io_refusal", lambda descriptor: "there is none")
    arena = file_arena(MIB, tmp_path, ME, direct_io=True)
    assert not arena.region.direct_io
    assert "not past it as --gds-l1-use-direct-io asks for" in caplog.text
    assert "reason=there is none" in caplog.text
    arena.close()


def test_past_the_page_cache_and_through_it_lie_the_same_bytes(tmp_path: Path) -> None:
    arena = file_arena(4 * MIB, tmp_path, ME, direct_io=True)
    try:
        if not arena.region.direct_io:
            pytest.skip("this file system has no direct I/O")
        assert arena.region.descriptor is not None
        assert direct_io_refusal(arena.region.descriptor) is None
        direct = os.open(f"/proc/self/fd/{arena.region.descriptor}", os.O_RDWR | os.O_DIRECT)
        with mmap.mmap(-1, 4096) as page:
            for number in range(8):
                offset = number * 8192
                arena.region.view[offset : offset + 4096] = bytes([number + 1]) * 4096
                os.preadv(direct, [page], offset)
                assert page[:] == bytes([number + 1]) * 4096
                page[:] = bytes([number + 101]) * 4096
                os.pwritev(direct, [page], offset)
                assert bytes(arena.region.view[offset : offset + 4096]) == bytes([number + 101]) * 4096
        os.close(direct)
    finally:
        arena.close()


def test_bytes_that_the_disk_has_lost_are_an_error_and_no_signal(tmp_path: Path) -> None:
    arena = file_arena(4 * MIB, tmp_path, ME)
    arena.fetch(0, 4 * MIB)
    os.truncate(tmp_path / SLAB_NAME, MIB)
    arena.fetch(0, MIB)
    with pytest.raises(OSError, match="Bad address"):
        arena.fetch(MIB, MIB)
    arena.close()


def test_the_mark_says_whose_it_is_and_lies_behind_the_arena(tmp_path: Path) -> None:
    arena = file_arena(MIB, tmp_path, {**ME, "instance_id": "n" * 128})
    with (tmp_path / SLAB_NAME).open("rb") as file:
        file.seek(MIB)
        title, rest = file.read().split(b"\n", 1)
    assert title == b"lmcache-l1-slab"
    assert json.loads(rest.rstrip(b"\0"))["instance_id"] == "n" * 128
    arena.close()


def test_memory_has_nothing_to_fetch() -> None:
    arena = anonymous_arena(MIB)
    arena.fetch(0, 1 << 60)  # memory is there
    assert not arena.region.is_file
    arena.close()


def test_allocating_says_what_the_kernel_says(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (tmp_path / "file").open("rb") as file, pytest.raises(OSError, match="Bad file descriptor"):
        allocate_file(file.fileno(), MIB)
