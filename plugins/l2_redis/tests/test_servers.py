"""Real servers: how one gets in, what they refuse, and what they forget."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from lmcache_core import ConfigError, HashChain, KeySpace, ObjectKey, Outcome, ResourceError
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key, payload_of
from lmcache_devkit.l2_driver import L2Driver
from lmcache_devkit.l2_suite import OBJECT_BYTES, counted, put
from lmcache_object_remote import object_name
from tests.remote.redis_servers import HOST, RedisServer, redis_server, wait_for

DONE, MISSING, REJECTED, FAILED = Outcome.DONE, Outcome.MISSING, Outcome.REJECTED, Outcome.FAILED
SECRET = "open-sesame-4711"
OpenRedis = Callable[..., L2Driver]


def has_all(driver: L2Driver, memory: BorrowedMemory, keys: list[ObjectKey]) -> bool:
    items = [(key, memory.lend(OBJECT_BYTES)) for key in keys]
    return driver.verified_load(*items) == (DONE,) * len(keys)


# --- getting in


def test_only_a_user_with_a_password_gets_in(tmp_path: Path, open_at: OpenRedis, memory: BorrowedMemory) -> None:
    users = (f"default on >{SECRET} ~* &* +@all", f"kv on >{SECRET}x ~kv/* &* +@all")
    options = [word for user in users for word in ("--user", *user.split())]
    with redis_server(tmp_path / "s", *options, password=SECRET) as server:
        (tmp_path / "password").write_text(f"{SECRET}x\nanother line\n")
        kv = {"username": "kv", "key_prefix": "kv/"}
        driver = open_at(server.port, **kv, password=f"{SECRET}x")
        keys = put(driver, memory, 2)
        driver.close(10)
        assert has_all(open_at(server.port, **kv, password_file=str(tmp_path / "password")), memory, keys)
        for refused in ({}, {"password": "wrong"}, {**kv, "password": SECRET}, {"url": f"redis://:no@{HOST}"}):
            with pytest.raises(ResourceError, match="username and password") as error:
                open_at(None if "url" in refused else server.port, **_at(refused, server))
            assert SECRET not in str(error.value)
            assert "\n" not in str(error.value)
        with pytest.raises(ResourceError, match=r"NOPERM.*key_prefix"):
            open_at(server.port, username="kv", password=f"{SECRET}x", key_prefix="other/")


def _at(settings: dict[str, str], server: RedisServer) -> dict[str, str]:
    return {**settings, "url": f"{settings['url']}:{server.port}"} if "url" in settings else settings


@pytest.mark.parametrize("content", [None, "", "\nsecond", b"\xff\n"])
def test_a_password_file_without_a_password_is_refused(
    tmp_path: Path, open_at: OpenRedis, content: str | bytes | None
) -> None:
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ResourceError, match="password_file"):
        open_at(1, password_file=str(path))


def test_a_unix_socket_and_a_database_are_used(tmp_path: Path, open_at: OpenRedis, memory: BorrowedMemory) -> None:
    path = tmp_path / "r.sock"
    with redis_server(tmp_path / "s", "--unixsocket", str(path)) as server:
        first = open_at(socket_path=str(path), database=3)
        keys = put(first, memory, 2)
        with server.client() as client:
            assert client.dbsize() == 0
        first.close(10)
        assert has_all(open_at(url=f"redis://{HOST}:{server.port}/3"), memory, keys)


def test_a_server_that_is_not_there_is_named_with_a_remedy(open_at: OpenRedis) -> None:
    with pytest.raises(ResourceError, match=r"127.0.0.1:1\b.*cannot be reached.*check that it runs"):
        open_at(1)


def test_a_second_server_is_refused_and_a_shared_one_is_not(
    server: RedisServer, open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    first = open_at(server.port)
    with pytest.raises(ResourceError, match="owned by server 'instance-of-tests'"):
        open_at(server.port)
    with pytest.raises(ResourceError, match="does not share it"):
        open_at(server.port, shared=True)
    first.close(10)
    owner = open_at(server.port, shared=True, owner=True)
    guest = open_at(server.port, shared=True)
    keys = put(guest, memory, 3)
    assert owner.has(*keys) == (DONE,) * 3
    with pytest.raises(ResourceError, match="set 'owner' to false"):
        open_at(server.port, shared=True, owner=True)


def test_a_node_that_is_not_a_cluster_is_refused(server: RedisServer, open_at: OpenRedis) -> None:
    with pytest.raises(ResourceError, match=r"not a node of a cluster.*name it in 'host'"):
        open_at(nodes=[f"{HOST}:{server.port}"])


def test_an_unknown_cursor_is_refused(server: RedisServer, open_at: OpenRedis) -> None:
    driver = open_at(server.port)
    for cursor in ("0", "x" * 32, "../../etc", "A" * 32):
        with pytest.raises(ConfigError, match="cursor"):
            driver.adapter.list_keys(cursor, 10)


def test_a_listing_goes_on_from_a_cursor_of_another_life(
    server: RedisServer, open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    driver = open_at(server.port)
    keys = put(driver, memory, 9)
    page = driver.adapter.list_keys(None, 4)
    driver.close(10)
    again = open_at(server.port)
    assert sorted([*page.keys, *again.keys(4, page.cursor)]) == sorted(keys)


# --- what is refused and what is forgotten


def test_what_the_server_evicts_is_a_miss_and_is_counted_anew(
    tmp_path: Path, open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    with redis_server(tmp_path / "s", "--maxmemory", "6mb", "--maxmemory-policy", "allkeys-random") as server:
        driver = open_at(server.port, recount_seconds=1)
        big = 200_000
        keys = [object_key(number) for number in range(60)]
        for number, key in enumerate(keys):
            assert driver.store((key, memory.sealed(key, payload_of(number, big)))) == (DONE,)
        there = driver.has(*keys)
        assert 0 < there.count(MISSING) < len(keys)
        target = memory.lend(4096 + big)
        for key, found in zip(keys, there, strict=True):
            assert driver.verified_load((key, target)) == (found,)

        def right() -> bool:
            return counted(driver)[0] == there.count(DONE)

        wait_for(right, "what the server evicted is still counted")


def test_a_server_whose_memory_is_full_rejects_stores_and_serves_loads(
    tmp_path: Path, open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    with redis_server(tmp_path / "s", "--maxmemory", "4mb", "--maxmemory-policy", "noeviction") as server:
        driver = open_at(server.port)
        keys = [object_key(number) for number in range(30)]
        outcomes = [driver.store((key, memory.sealed(key, payload_of(0, 200_000))))[0] for key in keys]
        assert set(outcomes) == {DONE, REJECTED}
        stored = [key for key, outcome in zip(keys, outcomes, strict=True) if outcome is DONE]
        assert driver.verified_load((stored[0], memory.lend(4096 + 200_000))) == (DONE,)
        assert counted(driver)[0] == len(stored)
        assert driver.delete(stored[0]) == (DONE,)
        assert driver.adapter.counters()["rejected_full"] == outcomes.count(REJECTED)  # type: ignore[attr-defined]


def test_objects_expire(server: RedisServer, open_at: OpenRedis, memory: BorrowedMemory) -> None:
    driver = open_at(server.port, ttl_seconds=1, recount_seconds=1, value_piece_bytes=65_536)
    key = object_key(1)
    assert driver.store((key, memory.sealed(key, payload_of(1, 200_000)))) == (DONE,)
    wait_for(lambda: driver.has(key) == (MISSING,), "the object does not expire")
    assert driver.load((key, memory.lend(4096 + 200_000))) == (MISSING,)
    wait_for(lambda: counted(driver) == (0, 0), "what expired is still counted")


@pytest.mark.parametrize("what", ["a list", "a letter", "another object"])
def test_what_is_not_ours_is_left_alone(
    server: RedisServer, open_at: OpenRedis, memory: BorrowedMemory, tmp_path: Path, what: str
) -> None:
    driver = open_at(server.port)
    key, other = object_key(1), object_key(2)
    name = object_name(f"{tmp_path.name}/", key)
    with server.client() as client:
        if what == "a list":
            client.rpush(name, "a", "b")
        elif what == "a letter":
            client.set(name, b"Dear diary, " * 1000)
        else:
            client.set(name, bytes(memory.sealed(other, payload_of(2, 10_000)).view))
        before = client.dump(name)
        whole = memory.sealed(key, payload_of(1, 10_000))
        assert driver.store((key, whole)) == (REJECTED,)
        assert driver.verified_load((key, memory.lend(whole.length)))[0] in (Outcome.FOREIGN, Outcome.DAMAGED)
        assert driver.has(key) == (MISSING,)
        assert driver.delete(key) == (MISSING,)
        assert driver.keys(10) == []
        assert client.dump(name) == before
        client.delete(name)


def test_a_damaged_object_makes_room_for_the_right_one_without_being_loaded_first(
    server: RedisServer, open_at: OpenRedis, memory: BorrowedMemory, tmp_path: Path
) -> None:
    driver = open_at(server.port)
    key = object_key(1)
    whole = memory.sealed(key, payload_of(1, 10_000))
    with server.client() as client:
        client.set(object_name(f"{tmp_path.name}/", key), bytes(whole.view)[:5000])
    assert driver.store((key, whole)) == (DONE,)
    assert driver.verified_load((key, memory.lend(whole.length))) == (DONE,)


def test_what_other_prefixes_have_is_neither_counted_nor_listed(
    server: RedisServer, open_at: OpenRedis, memory: BorrowedMemory, tmp_path: Path
) -> None:
    odd = f"{tmp_path.name}[a]*?\\^"
    other = open_at(server.port, key_prefix=f"{tmp_path.name}a-and-more/")
    put(other, memory, 2, first=10)
    first = open_at(server.port, key_prefix=odd)
    keys = put(first, memory, 3)
    first.close(10)
    again = open_at(server.port, key_prefix=odd)
    assert sorted(again.keys(10)) == sorted(keys)
    assert counted(again) == (3, 3 * OBJECT_BYTES)


# --- a server that comes and goes


def test_a_server_that_was_killed_fails_operations_and_serves_again_when_it_is_back(
    tmp_path: Path, open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    persistent = ("--appendonly", "yes", "--appendfsync", "always")
    with redis_server(tmp_path / "s", *persistent) as server:
        driver = open_at(server.port)
        keys = put(driver, memory, 4)
        server.kill()
        assert driver.load((keys[0], memory.lend(OBJECT_BYTES))) == (FAILED,)
        assert driver.has(keys[1]) == (FAILED,)
        server.start()
        wait_for(lambda: driver.has(*keys) == (DONE,) * 4, "the adapter does not find its server again")
        assert has_all(driver, memory, keys)
        put(driver, memory, 2, first=10)


def test_an_operation_whose_time_is_over_leaves_no_reply_for_the_next(
    tmp_path: Path, open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    with redis_server(tmp_path / "s") as server:
        driver = open_at(server.port, timeout_seconds=1, num_connections=2)
        keys = put(driver, memory, 4)
        server.freeze()
        try:
            items = [(key, memory.lend(OBJECT_BYTES)) for key in keys[:2]]
            assert driver.load(*items) == (Outcome.TIMED_OUT,) * 2
        finally:
            server.thaw()
        assert has_all(driver, memory, keys)
        assert has_all(driver, memory, keys[::-1])


def test_durability_that_is_not_available_is_a_warning(
    tmp_path: Path, open_at: OpenRedis, caplog: pytest.LogCaptureFixture
) -> None:
    options = ("--maxmemory", "10mb", "--maxmemory-policy", "allkeys-lru")
    with redis_server(tmp_path / "s", *options) as server, caplog.at_level(logging.WARNING):
        open_at(server.port, server_persists=True)
    assert "appendonly is off" in caplog.text
    assert "allkeys-lru" in caplog.text


def test_a_user_with_the_rights_that_the_page_names_can_do_everything(
    tmp_path: Path, open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    rights = "+get +set +getrange +strlen +exists +unlink +scan +persist +pttl +eval +info +client|setname"
    with redis_server(tmp_path / "s", "--user", "kv", "on", f">{SECRET}", "~kv/*", *rights.split()) as server:
        driver = open_at(
            server.port, username="kv", password=SECRET, key_prefix="kv/", value_piece_bytes=65_536,
            owner_lease_seconds=1,
        )  # fmt: skip
        keys = put(driver, memory, 2)
        big = ObjectKey(KeySpace("m", 0, 0, "", 256, HashChain.BLAKE3, bytes(16)), bytes(32))
        whole = memory.sealed(big, payload_of(1, 200_000))
        assert driver.store((big, whole)) == (DONE,)
        assert driver.verified_load((big, memory.lend(whole.length))) == (DONE,)
        assert len(driver.keys(10)) == 3
        assert driver.delete(*keys, big) == (DONE,) * 3
        with server.client() as client:
            before = client.get("kv/.owner")
            wait_for(lambda: client.get("kv/.owner") != before, "the owner's record is not renewed")
            driver.close(10)
            assert client.dbsize() == 0
