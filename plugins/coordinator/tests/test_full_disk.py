"""The disk under the state fills up: what cannot be kept is refused with the reason, and nothing acknowledged is lost."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plugins.coordinator.tests.coordinator_process import CoordinatorProcess

MIB = 2**20
QUOTAS_MAX = 20_000
SALT = "x" * 100


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user may not mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(coordinator: CoordinatorProcess) -> tuple[set[str], str]:
    """The salts whose quotas were acknowledged, and why the next one was not."""
    kept = set[str]()
    for number in range(QUOTAS_MAX):
        salt = f"{SALT}-{number}"
        reply = coordinator.ask("PUT", f"/l2/quota/{salt}", {"limit_gb": number})
        if reply.status != 200:
            assert reply.status == 503, reply
            return kept, reply.body["detail"]
        kept.add(salt)
    raise AssertionError("it never fills up")


def salts(coordinator: CoordinatorProcess) -> set[str]:
    reply = coordinator.ask("GET", "/l2/status")
    assert reply.status == 200, reply
    return {each["cache_salt"] for each in reply.body["by_cache_salt"]}


def check(coordinator: CoordinatorProcess, folder: Path, make_room: Callable[[], None]) -> None:
    kept, why = fill(coordinator)
    assert f"--state {folder / 'state.db'}: " in why
    assert "disk" in why
    assert "no transaction" not in why, "the reason is the first error, not what followed from it"
    assert kept
    assert salts(coordinator) in (kept, {*kept, f"{SALT}-{len(kept)}"}), "what was refused may have been made"
    coordinator.kill()
    make_room()
    coordinator.start()
    assert kept <= salts(coordinator), "also when it died meanwhile"
    assert coordinator.ask("PUT", f"/l2/quota/{SALT}-new", {"limit_gb": 1}).status == 200
    assert coordinator.ask("DELETE", f"/l2/quota/{SALT}-0").status == 200


def test_a_disk_that_is_full(small_disk: Path) -> None:
    with CoordinatorProcess(small_disk) as coordinator:
        filler = small_disk / "filler"
        filler.write_bytes(bytes(MIB // 2))
        check(coordinator, small_disk, filler.unlink)


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    with CoordinatorProcess(tmp_path) as coordinator:
        assert coordinator.process is not None
        log = coordinator.log.stat().st_size
        resource.prlimit(coordinator.process.pid, resource.RLIMIT_FSIZE, (max(log, 0) + 256 * 1024,) * 2)
        check(coordinator, tmp_path, lambda: None)
