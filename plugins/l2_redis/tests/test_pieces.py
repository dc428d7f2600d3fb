"""Objects in several values: never half of one, nor parts of two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from lmcache_core import HEADER_BYTES, ObjectKey, Outcome, seal
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key, payload_of
from lmcache_devkit.l2_driver import L2Driver
from lmcache_devkit.l2_suite import counted
from lmcache_l2_redis.pieces import PieceName, further_pieces
from lmcache_l2_redis.values import UNFINISHED_SECONDS
from lmcache_object_remote import object_id_of, object_name
from plugins.l2_redis.tests.scripted import Scripted
from tests.remote.redis_servers import RedisServer, wait_for

DONE, MISSING, DAMAGED = Outcome.DONE, Outcome.MISSING, Outcome.DAMAGED
PIECE = 65_536
TOTAL = HEADER_BYTES + 200_000
OpenRedis = Callable[..., L2Driver]


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """The defaults of `open_at`."""
    return f"{tmp_path.name}/"


@pytest.fixture
def driver(server: RedisServer, open_at: OpenRedis) -> L2Driver:
    return open_at(server.port, value_piece_bytes=PIECE)


@pytest.fixture
def stored(driver: L2Driver, memory: BorrowedMemory) -> ObjectKey:
    key = object_key(1)
    assert driver.store((key, memory.sealed(key, payload_of(1, TOTAL - HEADER_BYTES)))) == (DONE,)
    return key


def names(client: redis.Redis, prefix: str) -> list[str]:
    """Of objects and pieces."""
    found = [name.decode() for name in client.scan_iter(match=f"{prefix}*")]
    return sorted(name for name in found if ".kv" in name)


@given(st.integers(HEADER_BYTES, 2_000_000), st.integers(65_536, 500_000))
def test_pieces_cover_the_object_without_gap_or_overlap(total: int, piece_bytes: int) -> None:
    name = object_name("p/", object_key(3))
    pieces = list(further_pieces(name.encode(), bytes(HEADER_BYTES), total, piece_bytes))
    ends = [min(piece_bytes, total), *(piece.end for piece in pieces)]
    assert [piece.start for piece in pieces] == ends[:-1]
    assert ends[-1] == total
    assert all(0 < piece.end - piece.start <= piece_bytes for piece in pieces)
    for number, piece in enumerate(pieces, 1):
        assert PieceName.of(piece.name.decode()) == PieceName(name, "0" * 16, number)
        assert object_id_of(piece.name.decode()) is None


@given(st.text(max_size=60))
def test_no_other_name_is_taken_for_a_piece(text: str) -> None:
    assert PieceName.of(text) is None
    assert PieceName.of(object_name(text, object_key(1))) is None


def test_an_object_lies_in_pieces_and_comes_back_whole(
    driver: L2Driver, stored: ObjectKey, server: RedisServer, memory: BorrowedMemory, open_at: OpenRedis, prefix: str
) -> None:
    with server.client() as client:
        found = names(client, prefix)
        assert len(found) == -(-TOTAL // PIECE)
        assert [client.ttl(name) for name in found] == [-1] * len(found)
        assert max(client.strlen(name) for name in found) == PIECE
    assert counted(driver) == (1, TOTAL)
    assert driver.verified_load((stored, memory.lend(TOTAL))) == (DONE,)
    long = memory.lend(TOTAL + 300_000)._replace(at_most=True)
    assert driver.load((stored, long)) == (DONE,)
    assert driver.load((stored, memory.lend(TOTAL - 1))) == (DAMAGED,)
    assert driver.load((stored, memory.lend(TOTAL + 1))) == (DAMAGED,)
    driver.close(10)
    for piece_bytes in (PIECE * 2, 1 << 20):
        other = open_at(server.port, value_piece_bytes=piece_bytes)
        assert counted(other) == (1, TOTAL)
        assert other.verified_load((stored, memory.lend(TOTAL))) == (DONE,)
        other.close(10)


def test_after_a_delete_nothing_is_left(driver: L2Driver, stored: ObjectKey, server: RedisServer, prefix: str) -> None:
    assert driver.delete(stored) == (DONE,)
    assert counted(driver) == (0, 0)
    with server.client() as client:
        assert names(client, prefix) == []


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("fault", ["gone", "short", "long", "of another object", "altered"])
def test_a_torn_object_is_damaged_and_makes_room(
    driver: L2Driver,
    stored: ObjectKey,
    server: RedisServer,
    memory: BorrowedMemory,
    prefix: str,
    number: int,
    fault: str,
) -> None:
    with server.client() as client:
        (piece,) = [name for name in names(client, prefix) if name.endswith(f".{number}")]
        data = client.get(piece)
        assert isinstance(data, bytes)
        match fault:
            case "gone":
                client.delete(piece)
            case "short":
                client.set(piece, data[:-1])
            case "long":
                client.set(piece, data + b"\0")
            case "of another object":
                client.set(piece, payload_of(77, len(data)))
            case "altered":
                client.setrange(piece, 50, bytes([data[50] ^ 1]))
        assert driver.verified_load((stored, memory.lend(TOTAL))) == (DAMAGED,)
        again = memory.sealed(stored, payload_of(1, TOTAL - HEADER_BYTES))
        assert driver.store((stored, again)) == (DONE,)
        assert driver.verified_load((stored, memory.lend(TOTAL))) == (DONE,)
        driver.delete(stored)
        assert names(client, prefix) == []


def test_what_is_there_is_counted_though_what_was_left_to_do_failed(
    scripted: Scripted, open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    driver = open_at(scripted.port, value_piece_bytes=PIECE)
    scripted.answers = {"PERSIST": [b"-NOPERM no\r\n"]}
    key = object_key(1)
    assert driver.store((key, memory.sealed(key, payload_of(1, TOTAL - HEADER_BYTES)))) == (Outcome.FAILED,)
    assert counted(driver) == (1, TOTAL)


def test_pieces_of_an_object_that_is_whole_stay_though_writing_them_again_is_refused(
    scripted: Scripted, open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    """The answer that said that it is whole was lost."""
    driver = open_at(scripted.port, value_piece_bytes=PIECE)
    key = object_key(1)
    whole = memory.sealed(key, payload_of(1, PIECE - HEADER_BYTES + 10))
    scripted.answers = {
        "SET": [b"+OK\r\n", b"", b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"],
        "GETRANGE": [b"$4096\r\n%b\r\n" % bytes(whole.view[:HEADER_BYTES])],
    }
    assert driver.store((key, whole)) == (Outcome.REJECTED,)
    assert "UNLINK" not in scripted.asked


def test_two_writers_of_one_object_never_mix_their_pieces(
    server: RedisServer, open_at: OpenRedis, memory: BorrowedMemory, prefix: str
) -> None:
    """Two engines compute the same chunk to different bits."""
    both = [open_at(server.port, shared=True, value_piece_bytes=PIECE) for _ in range(2)]
    for number in range(15):
        key = object_key(100 + number)
        jobs = []
        for writer, driver in enumerate(both):
            whole = memory.sealed(key, payload_of(1000 * writer + number, TOTAL - HEADER_BYTES))
            jobs.append(driver.submit_store([(key, whole)]))
        assert [driver.finish(job) for driver, job in zip(both, jobs, strict=True)] == [(DONE,), (DONE,)]
        for driver in both:
            assert driver.verified_load((key, memory.lend(TOTAL))) == (DONE,)
    with server.client() as client:
        assert len(names(client, prefix)) == 15 * -(-TOTAL // PIECE)
        assert all(client.ttl(name) == -1 for name in names(client, prefix))


def test_what_a_killed_server_left_behind_has_an_end_or_is_removed_by_the_owner(
    server: RedisServer, open_at: OpenRedis, memory: BorrowedMemory, prefix: str
) -> None:
    key, other = object_key(1), object_key(2)
    first = open_at(server.port, value_piece_bytes=PIECE)
    for each in (key, other):
        assert first.store((each, memory.sealed(each, payload_of(1, TOTAL - HEADER_BYTES)))) == (DONE,)
    first.close(10)
    with server.client() as client:
        client.delete(object_name(prefix, key))  # as if only its pieces had been written, and made to stay
        (unfinished,) = [name for name in names(client, prefix) if object_name("", key) in name and name.endswith(".1")]
        client.expire(unfinished, UNFINISHED_SECONDS)
        guest = open_at(server.port, shared=True)
        assert counted(guest) == (1, TOTAL)
        guest.close(10)
        assert len(names(client, prefix)) == 7
        owner = open_at(server.port)
        assert counted(owner) == (1, TOTAL)
        assert owner.verified_load((other, memory.lend(TOTAL))) == (DONE,)
        wait_for(lambda: len(names(client, prefix)) == 5, "the owner does not clean up")
        assert client.exists(unfinished)


def test_an_encoded_object_is_found_by_its_length(driver: L2Driver, memory: BorrowedMemory) -> None:
    key = object_key(5)
    whole = memory.lend(HEADER_BYTES + 70_000)
    whole.view[HEADER_BYTES:] = payload_of(5, 70_000)
    seal(whole.view, key, 1)
    assert driver.store((key, whole)) == (DONE,)
    for room in (HEADER_BYTES + 70_000, HEADER_BYTES + 70_001, 3 * PIECE):
        buffer = memory.lend(room)._replace(at_most=True)
        assert driver.load((key, buffer)) == (DONE,)
        assert buffer.view[: whole.length] == whole.view
    assert driver.load((key, memory.lend(HEADER_BYTES + 69_999)._replace(at_most=True))) == (DAMAGED,)
