"""What a load found damaged may have been altered on its way, and is not removed for that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lmcache_core import HEADER_BYTES, ObjectKey, Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key, payload_of
from lmcache_devkit.l2_driver import L2Driver
from lmcache_devkit.l2_suite import counted
from plugins.l2_redis.tests.scripted import Scripted
from tests.remote.redis_servers import RedisServer, wait_for

DONE, MISSING, DAMAGED = Outcome.DONE, Outcome.MISSING, Outcome.DAMAGED
OpenRedis = Callable[..., L2Driver]
TOTAL = HEADER_BYTES + 200_000
KEY = object_key(1)


def stored(driver: L2Driver, memory: BorrowedMemory, key: ObjectKey = KEY) -> None:
    assert driver.store((key, memory.sealed(key, payload_of(1, TOTAL - HEADER_BYTES)))) == (DONE,)


@pytest.mark.parametrize("piece_bytes", [1 << 20, 65_536])
def test_a_good_object_stays(server: RedisServer, open_at: OpenRedis, memory: BorrowedMemory, piece_bytes: int) -> None:
    driver = open_at(server.port, value_piece_bytes=piece_bytes)
    stored(driver, memory)
    driver.adapter.reject(KEY, DAMAGED)
    wait_for(lambda: driver.has(KEY) == (DONE,), "it is not offered again")
    assert driver.verified_load((KEY, memory.lend(TOTAL))) == (DONE,)


def test_it_is_read_over_a_connection_of_its_own(
    server: RedisServer, open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    driver = open_at(server.port)
    stored(driver, memory)
    assert driver.load((KEY, memory.lend(TOTAL))) == (DONE,)  # what it was read over is idle now
    with server.client() as client:
        before = client.info("stats")["total_connections_received"]
        driver.adapter.reject(KEY, DAMAGED)
        wait_for(lambda: driver.has(KEY) == (DONE,), "it is not offered again")
        assert client.info("stats")["total_connections_received"] > before


def test_one_that_is_refused_again_is_removed(server: RedisServer, open_at: OpenRedis, memory: BorrowedMemory) -> None:
    """It is whole, and of no use here, whatever its fault."""
    driver = open_at(server.port)
    stored(driver, memory)
    driver.adapter.reject(KEY, DAMAGED)
    wait_for(lambda: driver.has(KEY) == (DONE,), "it is not offered again")
    driver.adapter.reject(KEY, DAMAGED)
    wait_for(lambda: counted(driver) == (0, 0), "it stays")
    assert driver.has(KEY) == (MISSING,)


@pytest.mark.parametrize("more", [-1, 1])
def test_one_of_another_length_is_removed_at_once(
    server: RedisServer, open_at: OpenRedis, memory: BorrowedMemory, more: int
) -> None:
    driver = open_at(server.port)
    stored(driver, memory)
    assert driver.verified_load((KEY, memory.lend(TOTAL + more))) == (DAMAGED,)
    wait_for(lambda: counted(driver) == (0, 0), "it stays")


@pytest.mark.parametrize("at", [0, 100, HEADER_BYTES + 7])
def test_a_store_over_what_only_looked_damaged_finds_it_there(
    scripted: Scripted, open_at: OpenRedis, memory: BorrowedMemory, at: int
) -> None:
    """Its header page came altered, and then unaltered."""
    driver = open_at(scripted.port)
    whole = memory.sealed(KEY, payload_of(1, 10_000))
    good = bytes(whole.view)
    altered = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
    page = b"$4096\r\n%b\r\n"
    scripted.answers = {
        "SET": [b"$-1\r\n"],
        "EXISTS": [b":1\r\n"],
        "STRLEN": [b":%d\r\n" % len(good)],
        "GETRANGE": [page % altered[:HEADER_BYTES], page % good[:HEADER_BYTES]],
        "GET": [b"$%d\r\n%b\r\n" % (len(good), good)],
    }
    outcome = Outcome.REJECTED if at == 0 else DONE  # without our magic it is not ours, and in the way
    assert driver.store((KEY, whole)) == (outcome,)
    assert "UNLINK" not in scripted.asked
