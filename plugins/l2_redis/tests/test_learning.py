"""Who has what is found out, though some of those who are asked do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from lmcache_core import Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key
from lmcache_devkit.l2_driver import L2Driver
from lmcache_devkit.l2_suite import OBJECT_BYTES
from lmcache_l2_redis.node import Node
from lmcache_l2_redis.topology import Topology
from plugins.l2_redis.tests.scripted import Scripted

MISSING = Outcome.MISSING
OpenRedis = Callable[..., L2Driver]


class Slow(Topology):
    """One that learns on request."""

    def __init__(self) -> None:
        super().__init__(lambda address: pytest.fail("no node is asked"))
        self.started = 0
        self.go_on = asyncio.Event()

    def node_of(self, name: bytes) -> Node:
        raise NotImplementedError

    async def _learn(self) -> None:
        self.started += 1
        await self.go_on.wait()


def test_learning_goes_on_when_the_operation_that_began_it_is_over() -> None:
    """What takes longer than an operation may would never be known otherwise."""

    async def learn() -> None:
        topology = Slow()
        first = asyncio.create_task(topology.learn())
        await asyncio.sleep(0)
        second = asyncio.create_task(topology.learn())
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        topology.go_on.set()
        await asyncio.wait_for(second, 10)
        assert topology.started == 1
        await topology.learn()
        assert topology.started == 2

    asyncio.run(learn())


def test_learning_ends_with_the_topology() -> None:
    async def learn() -> None:
        topology = Slow()
        learning = asyncio.create_task(topology.learn())
        await asyncio.sleep(0)
        topology.close()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(learning, 10)

    asyncio.run(learn())


def test_a_node_that_hangs_does_not_keep_others_from_saying_who_has_what(
    scripted: Scripted, open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    with Scripted() as other:
        slots = b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n"
        scripted.answers = {"CLUSTER": [slots % scripted.port]}
        other.answers = {"CLUSTER": [slots % other.port]}
        driver = open_at(nodes=[f"127.0.0.1:{each.port}" for each in (scripted, other)], connect_timeout_seconds=0.2)
        scripted.answers = {"GET": [b""]}  # it fails, and then says nothing: another has followed it
        scripted.ignored = {"CLUSTER"}
        assert driver.load((object_key(1), memory.lend(OBJECT_BYTES))) == (MISSING,)
        assert "GET" in other.asked
        driver.close(10)


def test_sentinels_that_are_gone_do_not_take_the_master_with_them(
    scripted: Scripted, open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    port = str(scripted.port).encode()
    scripted.answers = {"SENTINEL": [b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%b\r\n" % (len(port), port)]}
    driver = open_at(sentinels=[f"127.0.0.1:{scripted.port}"], master_name="kv")
    scripted.answers = {"SENTINEL": [b""], "GET": [b"", b"$-1\r\n"]}
    assert driver.load((object_key(1), memory.lend(OBJECT_BYTES))) == (MISSING,)
    assert scripted.asked.count("SENTINEL") > 1
