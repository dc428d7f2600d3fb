"""L1's memory: private to its owner, marked as alive, and an error where it cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from lmcache_core.l1.arena import (
    SEGMENT_PREFIX,
    SHM_ROOT,
    anonymous_arena,
    remove_stale_segments,
    shared_arena,
    shared_memory_shortage,
)
from lmcache_core.model.errors import ResourceError

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


def test_a_full_file_system_is_an_answer_and_not_a_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tmpfs of 1 MiB with an arena of 8: the file can be made, its pages cannot."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        monkeypatch.setattr("lmcache_core.l1.arena.SHM_ROOT", tmp_path)
        arena = shared_arena(8 * MIB, "full")
        assert arena.back(0, MIB // 2)
        assert not arena.back(MIB, 4 * MIB)
        arena.region.view[: MIB // 2] = bytes(MIB // 2)
        arena.close()
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_anonymous_memory_needs_no_backing() -> None:
    arena = anonymous_arena(MIB)
    assert arena.segment is None
    assert arena.back(0, MIB)
    arena.region.view[:3] = b"abc"
    arena.close()


def test_closing_leaves_no_descriptor(name: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    shared_arena(MIB, name).close()
    assert len(os.listdir("/proc/self/fd")) == before
