"""What a machine says of its huge pages, and the remedy where it gives none."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmcache_core.l1.pages import anonymous_huge_pages_refusal, shared_huge_pages_refusal

SHM = Path("/dev/shm")


def thp(tmp_path: Path, enabled: str = "madvise", shmem: str = "never") -> Path:
    words = ["always", "within_size", "advise", "madvise", "never", "deny", "force"]
    for name, chosen in (("enabled", enabled), ("shmem_enabled", shmem)):
        (tmp_path / name).write_text(" ".join(f"[{word}]" if word == chosen else word for word in words) + "\n")
    return tmp_path


def mounts(tmp_path: Path, *options: str) -> Path:
    """A mountinfo in which /dev/shm was mounted with each of these, one over the other."""
    lines = ["22 1 0:20 / / rw - ext4 /dev/vda rw", "30 22 0:26 / /dev/shm2 rw - tmpfs tmpfs rw,huge=always"]
    lines += [f"31 22 0:27 / /dev/shm rw,nosuid shared:4 - tmpfs tmpfs rw,{option}" for option in options]
    (tmp_path / "mountinfo").write_text("\n".join(lines) + "\n")
    return tmp_path / "mountinfo"


@pytest.mark.parametrize("enabled", ["always", "madvise"])
def test_private_memory_gets_them_where_they_are_allowed(tmp_path: Path, enabled: str) -> None:
    assert anonymous_huge_pages_refusal(thp(tmp_path, enabled)) is None


def test_private_memory_names_how_to_get_them(tmp_path: Path) -> None:
    text = anonymous_huge_pages_refusal(thp(tmp_path, "never"))
    assert text is not None
    assert "enabled is 'never'; write madvise into it" in text
    assert "vm.nr_hugepages" in text
    assert "'unknown'" in str(anonymous_huge_pages_refusal(tmp_path / "nowhere"))


@pytest.mark.parametrize("option", ["huge=always", "size=4096k,huge=advise", "huge=within_size"])
def test_shared_memory_gets_them_by_its_mount_option(tmp_path: Path, option: str) -> None:
    assert shared_huge_pages_refusal(SHM, thp(tmp_path), mounts(tmp_path, option)) is None


@pytest.mark.parametrize("options", [("size=4096k",), ("huge=never",), ("huge=advise", "size=1m"), ()])
def test_shared_memory_names_how_to_mount_it(tmp_path: Path, options: tuple[str, ...]) -> None:
    text = shared_huge_pages_refusal(SHM, thp(tmp_path), mounts(tmp_path, *options))
    assert text == "/dev/shm is mounted without huge pages; mount -o remount,huge=advise /dev/shm"


def test_the_machine_overrules_the_mount(tmp_path: Path) -> None:
    assert shared_huge_pages_refusal(SHM, thp(tmp_path, shmem="force"), mounts(tmp_path)) is None
    denied = shared_huge_pages_refusal(SHM, thp(tmp_path, shmem="deny"), mounts(tmp_path, "huge=always"))
    assert str(denied).endswith("shmem_enabled is 'deny'; write advise into it")
    assert "'unknown'" in str(shared_huge_pages_refusal(SHM, tmp_path / "nowhere", tmp_path / "nowhere"))
