"""What comes altered is refused by the adapter itself: header and digest are compared while the bytes pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lmcache_core import HEADER_BYTES, Capability, Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key, payload_of
from lmcache_devkit.l2_driver import L2Driver
from lmcache_l2_redis.adapter import RedisAdapter
from lmcache_l2_redis.channel import BLOCK_BYTES
from lmcache_object_remote import object_name
from plugins.l2_redis.tests.scripted import Scripted
from tests.remote.redis_servers import RedisServer, wait_for

DONE, DAMAGED, FOREIGN = Outcome.DONE, Outcome.DAMAGED, Outcome.FOREIGN
OpenRedis = Callable[..., L2Driver]
KEY = object_key(1)
TOTAL = HEADER_BYTES + 2 * BLOCK_BYTES + 777
PIECE_BYTES = 800_000


def stored(driver: L2Driver, memory: BorrowedMemory) -> bytes:
    buffer = memory.sealed(KEY, payload_of(1, TOTAL - HEADER_BYTES))
    assert driver.store((KEY, buffer)) == (DONE,)
    return bytes(buffer.view)


def alter(server: RedisServer, prefix: str, at: int) -> None:
    """One bit of the object in the server, in whichever piece it is."""
    with server.client() as client:
        name = object_name(prefix, KEY)
        if at >= client.strlen(name):
            (piece,) = client.scan_iter(f"{name}.*.{at // PIECE_BYTES}")
            name, at = piece.decode(), at % PIECE_BYTES
        (byte,) = client.getrange(name, at, at)
        client.setrange(name, at, bytes([byte ^ 1]))


@pytest.mark.parametrize("piece_bytes", [1 << 28, PIECE_BYTES])
def test_one_altered_bit_anywhere_is_seen_by_the_adapter(
    server: RedisServer, open_at: OpenRedis, memory: BorrowedMemory, piece_bytes: int, tmp_path: Path
) -> None:
    prefix = f"{tmp_path.name}/"
    driver = open_at(server.port, key_prefix=prefix, value_piece_bytes=piece_bytes)
    assert Capability.VERIFIES in driver.adapter.capabilities
    whole = stored(driver, memory)
    buffer = memory.lend(TOTAL)
    places = {
        30: DAMAGED,
        2_000: DAMAGED,
        HEADER_BYTES - 1: DAMAGED,
        HEADER_BYTES: DAMAGED,
        PIECE_BYTES - 1: DAMAGED,
        PIECE_BYTES: DAMAGED,
        BLOCK_BYTES: DAMAGED,
        2 * BLOCK_BYTES + 64: DAMAGED,
        TOTAL - 1: DAMAGED,
        0: FOREIGN,
    }
    for at, expected in places.items():
        alter(server, prefix, at)
        assert driver.load((KEY, buffer)) == (expected,), at
        alter(server, prefix, at)  # back
        assert driver.load((KEY, buffer)) == (DONE,), at
        assert buffer.view == whole


@pytest.mark.parametrize("piece_bytes", [1 << 28, PIECE_BYTES])
def test_a_shorter_object_in_a_longer_buffer_is_whole(
    server: RedisServer, open_at: OpenRedis, memory: BorrowedMemory, piece_bytes: int, tmp_path: Path
) -> None:
    prefix = f"{tmp_path.name}/"
    driver = open_at(server.port, key_prefix=prefix, value_piece_bytes=piece_bytes)
    whole = stored(driver, memory)
    buffer = memory.lend(TOTAL + 3 * BLOCK_BYTES)._replace(at_most=True)
    assert driver.load((KEY, buffer)) == (DONE,)
    assert buffer.view[:TOTAL] == whole
    alter(server, prefix, TOTAL - 1)
    assert driver.load((KEY, buffer)) == (DAMAGED,)


def test_what_is_longer_than_its_header_says_is_damaged_where_it_would_fit(
    scripted: Scripted, open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    driver = open_at(scripted.port)
    more = bytes(memory.sealed(KEY, payload_of(1, 10_000)).view) + b"x" * 50
    scripted.answers = {"GET": [b"$%d\r\n%b\r\n" % (len(more), more)]}
    for room in (len(more), len(more) + 1):
        buffer = memory.lend(room)._replace(at_most=True)
        assert driver.load((KEY, buffer)) == (DAMAGED,)


def test_an_object_of_another_key_is_foreign(scripted: Scripted, open_at: OpenRedis, memory: BorrowedMemory) -> None:
    driver = open_at(scripted.port)
    other = bytes(memory.sealed(object_key(2), payload_of(1, 10_000)).view)
    scripted.answers = {"GET": [b"$%d\r\n%b\r\n" % (len(other), other)]}
    assert driver.load((KEY, memory.lend(len(other)))) == (FOREIGN,)
    assert counted_as(driver) == {"foreign": 1, "damaged": 0}


def test_what_came_altered_is_counted_and_read_again_before_it_is_removed(
    scripted: Scripted, open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    driver = open_at(scripted.port)
    good = bytes(memory.sealed(KEY, payload_of(1, 10_000)).view)
    altered = good[:-1] + bytes([good[-1] ^ 1])
    scripted.answers = {
        "EXISTS": [b":1\r\n"],
        "STRLEN": [b":%d\r\n" % len(good)],
        "GETRANGE": [b"$4096\r\n%b\r\n" % good[:HEADER_BYTES]],
        "GET": [b"$%d\r\n%b\r\n" % (len(good), each) for each in (altered, good)],
    }
    buffer = memory.lend(len(good))
    assert driver.load((KEY, buffer)) == (DAMAGED,)
    assert counted_as(driver) == {"foreign": 0, "damaged": 1}
    driver.adapter.reject(KEY, DAMAGED)
    wait_for(lambda: driver.has(KEY) == (DONE,), "it is not offered again")
    assert driver.load((KEY, buffer)) == (DONE,)
    assert "UNLINK" not in scripted.asked


@pytest.mark.parametrize("shared", [False, True])
def test_an_object_of_another_format_version_makes_room_where_the_backend_has_one_owner(
    server: RedisServer, open_at: OpenRedis, memory: BorrowedMemory, shared: bool, tmp_path: Path
) -> None:
    prefix = f"{tmp_path.name}/"
    driver = open_at(server.port, key_prefix=prefix, shared=shared)
    whole = stored(driver, memory)
    newer = whole[:8] + (2).to_bytes(2, "little") + whole[10:]
    with server.client() as client:
        client.set(object_name(prefix, KEY), newer)
    assert driver.load((KEY, memory.lend(TOTAL))) == ((FOREIGN if shared else DAMAGED),)
    outcomes = [driver.store((KEY, memory.sealed(KEY, whole[HEADER_BYTES:])))[0] for _ in range(13)]
    with server.client() as client:
        left = client.get(object_name(prefix, KEY))
    if shared:
        assert set(outcomes) == {Outcome.REJECTED}
        assert left == newer
        (condition,) = driver.adapter.conditions()
        assert (condition.name, condition.counts["objects"]) == ("objects_of_other_version", 1)
        assert driver.delete(KEY) == (Outcome.MISSING,)
    else:
        assert outcomes == [DONE] * 13
        assert left == whole
        assert not driver.adapter.conditions()
        with server.client() as client:
            client.set(object_name(prefix, KEY), newer)
        assert driver.delete(KEY) == (DONE,)


def counted_as(driver: L2Driver) -> dict[str, int]:
    adapter = driver.adapter
    assert isinstance(adapter, RedisAdapter)
    counters = adapter.counters()
    return {name: counters[name] for name in ("foreign", "damaged")}
