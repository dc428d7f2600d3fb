"""A pool in a file: how it is made, found again and refused, and that NIXL's word is not taken for what came."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lmcache_core import HEADER_BYTES, ConfigError, Outcome, ResourceError
from lmcache_devkit import BorrowedMemory, object_key, payload_of
from lmcache_devkit.l2.rig import OBJECT_BYTES, PAYLOAD_BYTES
from lmcache_devkit.l2_suite import put
from lmcache_l2_nixl.config import SLOT_BYTES
from lmcache_nixl_agent.agent import Handle, NixlAgent
from plugins.l2_nixl.tests.conftest import OpenHere

pytest.importorskip("nixl", reason="no build of NIXL is installed")

DONE, MISSING, REJECTED = Outcome.DONE, Outcome.MISSING, Outcome.REJECTED


@pytest.fixture
def pool(root: Path) -> Path:
    return root / "nixl-pool.slots"


def test_slots_of_no_given_size_take_no_more_than_their_objects(
    open_pool: OpenHere, memory: BorrowedMemory, pool: Path
) -> None:
    driver = open_pool(pool_size=64, slot_bytes=None)
    assert driver.adapter.max_object_bytes == SLOT_BYTES
    put(driver, memory, 3)
    assert pool.stat().st_size > 64 * SLOT_BYTES
    assert pool.stat().st_blocks * 512 < 2**20
    assert pool.stat().st_mode & 0o777 == 0o600


def test_slots_of_a_given_size_are_reserved_at_the_start(open_pool: OpenHere, pool: Path) -> None:
    open_pool(pool_size=16, slot_bytes=64 * 1024)
    assert pool.stat().st_blocks * 512 >= 16 * 64 * 1024


@pytest.mark.parametrize("direct", [False, True])
def test_what_was_stored_is_found_by_the_next_server(open_pool: OpenHere, memory: BorrowedMemory, direct: bool) -> None:
    params = {"use_direct_io": direct}
    first = open_pool(params)
    keys = put(first, memory, 5)
    first.delete(keys[0])
    first.close(30)
    again = open_pool(params)
    assert again.has(*keys) == (MISSING, DONE, DONE, DONE, DONE)
    for number, key in enumerate(keys[1:], 1):
        buffer = memory.lend(OBJECT_BYTES)
        assert again.load((key, buffer)) == (DONE,)
        assert buffer.view[HEADER_BYTES:] == payload_of(number, PAYLOAD_BYTES)


def test_another_size_is_refused_and_nothing_is_lost(open_pool: OpenHere, memory: BorrowedMemory) -> None:
    first = open_pool(pool_size=8)
    keys = put(first, memory, 2)
    first.close(30)
    with pytest.raises(
        ResourceError, match=r"nixl: pool '.*' was made with number of slots 8 where 9 .* overwrite_device"
    ):
        open_pool(pool_size=9)
    with pytest.raises(ResourceError, match="slot_bytes 65536 where 69632 is asked for"):
        open_pool(slot_bytes=68 * 1024)
    again = open_pool(pool_size=8)
    assert again.has(*keys) == (DONE, DONE)
    again.close(30)
    anew = open_pool(pool_size=9, overwrite_device=True)
    assert anew.has(*keys) == (MISSING, MISSING)
    put(anew, memory, 9)


def test_a_second_server_is_refused_and_the_owner_is_named(open_pool: OpenHere) -> None:
    open_pool()
    with pytest.raises(ResourceError, match=r"pool '.*' is in use by server 'instance-of-tests' \(pid"):
        open_pool()


def test_a_file_that_is_not_a_pool_is_left_as_it_is(open_pool: OpenHere, pool: Path) -> None:
    pool.parent.mkdir()
    pool.write_bytes(b"Dear diary, " * 1000)
    with pytest.raises(ResourceError, match="is not empty, and holds no slots of ours"):
        open_pool()
    assert pool.read_bytes() == b"Dear diary, " * 1000


def test_a_file_that_is_shorter_than_a_superblock_is_left_as_it_is(open_pool: OpenHere, pool: Path) -> None:
    pool.parent.mkdir()
    pool.write_bytes(b"Dear diary")
    with pytest.raises(ResourceError, match="is not empty, and holds no slots of ours"):
        open_pool()
    assert pool.read_bytes() == b"Dear diary"


def test_a_refused_size_takes_no_room(open_pool: OpenHere, pool: Path) -> None:
    open_pool(pool_size=8).close(30)
    before = pool.stat()
    with pytest.raises(ResourceError, match="overwrite_device"):
        open_pool(pool_size=80)
    assert (pool.stat().st_size, pool.stat().st_blocks) == (before.st_size, before.st_blocks)


def test_a_place_that_is_not_available_is_named(open_pool: OpenHere, root: Path) -> None:
    root.write_text("a file")
    with pytest.raises(ConfigError, match=r"nixl: pool '.*' cannot be used .* backend_params.file_path"):
        open_pool()


def test_a_pool_without_room_is_refused(open_pool: OpenHere, pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(
            ResourceError, match=r"8 slots of 65536\) has no room there .* lower pool_size or slot_bytes"
        ):
            open_pool()
    assert pool.stat().st_size == 0, "what was taken before it was found too much"
    open_pool(pool_size=7)


def test_a_pool_that_finds_no_space_is_not_discarded_for_another_size(
    open_pool: OpenHere, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_pool(pool_size=8)
    keys = put(first, memory, 2)
    first.close(30)
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(ResourceError, match="has no room there"):
            open_pool(pool_size=9, overwrite_device=True)
    assert open_pool(pool_size=8).has(*keys) == (DONE, DONE)


def test_a_disk_that_is_full_rejects_and_the_next_object_finds_room(
    open_pool: OpenHere, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = open_pool(slot_bytes=None)
    key = object_key(1)
    item = (key, memory.sealed(key, payload_of(1, PAYLOAD_BYTES)))
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        assert driver.store(item) == (REJECTED,)
        assert driver.has(key) == (MISSING,)
    assert driver.store(item) == (DONE,)


def test_what_nixl_says_it_moved_and_did_not_is_not_a_hit(
    open_pool: OpenHere, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = open_pool()
    (key,) = put(driver, memory, 1)
    with monkeypatch.context() as patched:
        patched.setattr(NixlAgent, "begin", nothing)
        patched.setattr(NixlAgent, "has_ended", yes)
        assert driver.load((key, memory.lend(OBJECT_BYTES)))[0] in (Outcome.FOREIGN, Outcome.DAMAGED)
    assert driver.has(key) == (MISSING,)


def test_what_nixl_says_it_stored_and_did_not_is_not_a_hit(
    open_pool: OpenHere, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = open_pool()
    with monkeypatch.context() as patched:
        patched.setattr(NixlAgent, "begin", nothing)
        patched.setattr(NixlAgent, "has_ended", yes)
        (key,) = put(driver, memory, 1)
    assert driver.load((key, memory.lend(OBJECT_BYTES)))[0] is MISSING
    assert driver.has(key) == (MISSING,)


def test_a_backend_that_fails_says_so_and_counts(
    open_pool: OpenHere, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = open_pool()
    (key,) = put(driver, memory, 1)
    with monkeypatch.context() as patched:
        patched.setattr(NixlAgent, "has_ended", fail)
        assert driver.load((key, memory.lend(OBJECT_BYTES))) == (Outcome.FAILED,)
    counts = driver.adapter.counters()  # type: ignore[attr-defined]  # of every adapter of ours
    assert counts["failed_transfers"] == 1
    assert counts["transfers_in_flight"] == 0
    assert driver.load((key, memory.lend(OBJECT_BYTES))) == (DONE,)


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def nothing(agent: NixlAgent, handle: Handle) -> None:
    """Begins no transfer."""


def yes(agent: NixlAgent, handle: Handle) -> bool:
    return True


def fail(agent: NixlAgent, handle: Handle) -> bool:
    raise OSError(errno.EIO, "NIXL could not carry out a transfer (made up)")
