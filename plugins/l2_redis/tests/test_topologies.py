"""Clusters whose slots move, and masters that are followed by others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from lmcache_core import Outcome, ResourceError
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key, payload_of
from lmcache_devkit.l2_driver import L2Driver
from lmcache_devkit.l2_suite import OBJECT_BYTES, counted, put
from lmcache_l2_redis.topology import slot_of
from lmcache_object_remote import object_name
from tests.remote.redis_servers import (
    HOST,
    MASTER,
    RedisServer,
    free_port_with_bus,
    redis_cluster,
    redis_server,
    redis_with_sentinels,
    wait_for,
)

DONE, MISSING = Outcome.DONE, Outcome.MISSING
OpenRedis = Callable[..., L2Driver]


@given(st.binary(max_size=60) | st.text("ab{}", max_size=12).map(str.encode))
def test_slots_are_those_of_another_client(name: bytes) -> None:
    assert slot_of(name) == key_slot(name)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[RedisServer]]:
    with redis_cluster(tmp_path_factory.mktemp("c")) as servers:
        yield servers


def nodes_of(servers: Sequence[RedisServer]) -> list[str]:
    return [f"{HOST}:{server.port}" for server in servers]


def test_objects_are_on_every_node_and_any_node_leads_to_all(
    cluster: Sequence[RedisServer], open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    driver = open_at(nodes=nodes_of(cluster)[2:], value_piece_bytes=65_536)
    keys = put(driver, memory, 30)
    big = object_key(100)
    whole = memory.sealed(big, payload_of(100, 300_000))
    assert driver.store((big, whole)) == (DONE,)
    assert driver.verified_load((big, memory.lend(whole.length))) == (DONE,)
    assert driver.verified_load(*((key, memory.lend(OBJECT_BYTES)) for key in keys)) == (DONE,) * 30
    for server in cluster:
        with server.client() as client:
            assert client.dbsize() > 3
    assert sorted(driver.keys(7)) == sorted([*keys, big])
    driver.close(10)
    again = open_at(nodes=["127.0.0.1:1", *nodes_of(cluster)[:1]])
    assert counted(again) == (31, 30 * OBJECT_BYTES + whole.length)
    assert again.delete(*keys, big) == (DONE,) * 31
    again.close(10)
    assert [_size(server) for server in cluster] == [0, 0, 0]


def _size(server: RedisServer) -> int:
    with server.client() as client:
        size = client.dbsize()
        assert isinstance(size, int)
        return size


def test_slots_that_move_while_they_are_used_cost_nothing(
    cluster: Sequence[RedisServer], open_at: OpenRedis, memory: BorrowedMemory, tmp_path: Path
) -> None:
    """First while they move (ASK, to where an object is not any more or not yet), then after that (MOVED)."""
    driver = open_at(nodes=nodes_of(cluster)[:1])
    keys = put(driver, memory, 12)
    late = object_key(500)
    name = object_name(f"{tmp_path.name}/", keys[0])
    slot, late_slot = slot_of(name.encode()), slot_of(object_name(f"{tmp_path.name}/", late).encode())
    clients: list[Any] = [server.client() for server in cluster]
    ids = [client.execute_command("CLUSTER", "MYID").decode() for client in clients]
    for moved in {slot, late_slot}:
        source = moved * 3 // 16_384
        target = (source + 1) % 3
        clients[target].execute_command("CLUSTER", "SETSLOT", moved, "IMPORTING", ids[source])
        clients[source].execute_command("CLUSTER", "SETSLOT", moved, "MIGRATING", ids[target])
        if moved == slot:
            clients[source].execute_command("MIGRATE", HOST, cluster[target].port, name, 0, 5000)
    assert driver.verified_load((keys[0], memory.lend(OBJECT_BYTES))) == (DONE,)
    assert driver.has(keys[0], late) == (DONE, MISSING)
    assert driver.store((late, memory.sealed(late, payload_of(500, 10_000)))) == (DONE,)
    assert driver.verified_load((late, memory.lend(OBJECT_BYTES))) == (DONE,)
    for moved in {slot, late_slot}:
        source = moved * 3 // 16_384
        target = (source + 1) % 3
        for number in (target, source, (source + 2) % 3):
            clients[number].execute_command("CLUSTER", "SETSLOT", moved, "NODE", ids[target])
    for client in clients:
        client.close()
    assert driver.has(*keys, late) == (DONE,) * 13
    assert driver.verified_load(*((key, memory.lend(OBJECT_BYTES)) for key in [*keys, late])) == (DONE,) * 13
    assert driver.delete(*keys, late) == (DONE,) * 13
    assert counted(driver) == (0, 0)


def test_a_node_of_a_cluster_is_not_taken_for_a_single_server(
    cluster: Sequence[RedisServer], open_at: OpenRedis, tmp_path: Path
) -> None:
    slot = slot_of(f"{tmp_path.name}/.owner".encode())
    with pytest.raises(ResourceError, match="name it in 'nodes'"):
        open_at(cluster[(slot * 3 // 16_384 + 1) % 3].port)


def test_a_cluster_that_is_not_set_up_is_refused(tmp_path: Path, open_at: OpenRedis) -> None:
    with (
        redis_server(tmp_path / "s", "--cluster-enabled", "yes", port=free_port_with_bus()) as server,
        pytest.raises(ResourceError, match="no slots"),
    ):
        open_at(nodes=[f"{HOST}:{server.port}"])


@pytest.mark.slow
def test_a_node_that_is_gone_costs_its_objects_and_comes_back(
    tmp_path: Path, open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    with redis_cluster(tmp_path / "c", 3, "--appendonly", "yes", "--appendfsync", "always") as servers:
        driver = open_at(nodes=nodes_of(servers), connect_timeout_seconds=1)
        keys = put(driver, memory, 30)
        servers[1].kill()
        outcomes = driver.has(*keys)
        assert set(outcomes) == {DONE, Outcome.FAILED}
        there = [key for key, outcome in zip(keys, outcomes, strict=True) if outcome is DONE]
        servers[1].start()
        wait_for(lambda: driver.has(*keys) == (DONE,) * 30, "the node does not come back", 60)
        assert there
        assert driver.verified_load(*((key, memory.lend(OBJECT_BYTES)) for key in keys)) == (DONE,) * 30


@pytest.mark.slow
def test_the_master_that_sentinels_choose_is_followed(
    tmp_path: Path, open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    with redis_with_sentinels(tmp_path / "s") as site:
        sentinels = nodes_of(site.sentinels)
        with pytest.raises(ResourceError, match="knows no master 'other'"):
            open_at(sentinels=sentinels, master_name="other")
        driver = open_at(sentinels=["127.0.0.1:1", *sentinels], master_name=MASTER)
        keys = put(driver, memory, 10)
        (replica,) = [server for server in site.servers if server.port != site.master_port()]
        wait_for(lambda: _size(replica) >= 11, "the replica has not got everything")
        site.kill_master()
        wait_for(lambda: driver.has(*keys) == (DONE,) * 10, "the new master is not found", 60)
        assert driver.verified_load(*((key, memory.lend(OBJECT_BYTES)) for key in keys)) == (DONE,) * 10
        put(driver, memory, 3, first=50)
        driver.close(10)
        assert counted(open_at(sentinels=sentinels, master_name=MASTER))[0] == 13
