"""How often the kernel and the loop are asked for what goes over a channel, and that no thread is woken for nothing."""

from __future__ import annotations

import asyncio
import os
import random
import selectors
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from lmcache_l2_redis.channel import BIG_BYTES, BLOCK_BYTES, Channel
from lmcache_l2_redis.replies import unseen

ROUNDS: Final = 10
Scenario = Callable[[Channel, socket.socket, "Counting"], Awaitable[None]]


class Counting(selectors.EpollSelector):
    """Of one descriptor: how often it was begun to watch it, and how often it was reported."""

    watched: int | None = None
    started = 0
    reported = 0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        self.started += fileobj == self.watched
        return super().register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(timeout)
        self.reported += sum(key.fd == self.watched for key, _ in ready)
        return ready


def run(scenario: Scenario) -> None:
    selector = Counting()

    async def play() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        selector.watched = ours.fileno()
        channel = Channel(ours)
        with theirs:
            theirs.settimeout(10)
            try:
                await asyncio.wait_for(scenario(channel, theirs, selector), 10)
            finally:
                channel.close()

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(play())


def _drain(theirs: socket.socket, count: int) -> None:
    while count:
        count -= len(theirs.recv(count))


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_the_loop_is_asked_once_to_watch_for_replies() -> None:
    async def scenario(channel: Channel, theirs: socket.socket, selector: Counting) -> None:
        for number in range(ROUNDS):
            into = memoryview(bytearray(8))
            asyncio.get_running_loop().call_soon(theirs.send, b"reply %d" % number)
            assert bytes(into[: await channel.receive(into)]) == b"reply %d" % number
        assert selector.started == 1

    run(scenario)


def test_what_comes_unasked_wakes_no_waiter_twice_and_can_be_read_later() -> None:
    async def scenario(channel: Channel, theirs: socket.socket, selector: Counting) -> None:
        into = memoryview(bytearray(64))
        theirs.send(b"asked")
        assert await channel.receive(into) == 5
        reported = selector.reported
        theirs.send(b"unasked")
        assert not channel.is_quiet
        await turns()
        assert selector.reported <= reported + 1
        assert await channel.receive(into) == 7

    run(scenario)


def test_an_answer_that_comes_before_all_is_sent_wakes_no_waiter_twice() -> None:
    async def scenario(channel: Channel, theirs: socket.socket, selector: Counting) -> None:
        into = memoryview(bytearray(64))
        theirs.send(b"asked")
        await channel.receive(into)
        reported = selector.reported
        value = bytes(8 << 20)
        sending = asyncio.create_task(channel.send(b"head", value))
        theirs.send(b"-ERR too much")
        await turns()
        assert selector.reported <= reported + 1
        await asyncio.to_thread(_drain, theirs, len(b"head") + len(value))
        await sending
        assert bytes(into[: await channel.receive(into)]) == b"-ERR too much"

    run(scenario)


def test_a_value_and_its_end_come_together_with_what_follows() -> None:
    async def scenario(channel: Channel, theirs: socket.socket, selector: Counting) -> None:
        value, behind = bytearray(1000), memoryview(bytearray(64))
        theirs.send(b"v" * 1000 + b"\r\n+")
        assert await channel.fill(memoryview(value), behind, 2, unseen) == 3
        assert value == b"v" * 1000
        assert bytes(behind[:3]) == b"\r\n+"
        theirs.send(b"v" * 600)
        filling = asyncio.create_task(channel.fill(memoryview(value), behind, 2, unseen))
        await turns()
        theirs.send(b"w" * 400 + b"\r")
        await turns()
        assert not filling.done()
        theirs.send(b"\n")
        assert await filling == 2
        assert value == b"v" * 600 + b"w" * 400

    run(scenario)


@pytest.mark.parametrize("size", [1, BIG_BYTES, 3 * BLOCK_BYTES, 3 * BLOCK_BYTES + 5])
def test_each_byte_of_a_value_is_shown_once_and_in_order_while_the_rest_is_on_its_way(size: int) -> None:
    async def scenario(channel: Channel, theirs: socket.socket, selector: Counting) -> None:
        data = random.Random(size).randbytes(size)
        value, behind, shown = memoryview(bytearray(size)), memoryview(bytearray(64)), []
        filling = asyncio.create_task(channel.fill(value, behind, 2, lambda part: shown.append(bytes(part))))
        half = size // 2
        await asyncio.to_thread(theirs.sendall, data[:half])
        await turns()
        assert b"".join(shown) == data[: sum(map(len, shown))]
        assert not half or shown
        await asyncio.to_thread(theirs.sendall, data[half:] + b"\r\n+")
        assert await filling == 3
        assert bytes(behind[:3]) == b"\r\n+"
        assert b"".join(shown) == value == data
        assert max(map(len, shown)) <= BLOCK_BYTES

    run(scenario)


@pytest.mark.parametrize("size", [BIG_BYTES, 3 * BLOCK_BYTES])
def test_behind_a_big_value_the_shortest_answer_wakes_again(size: int) -> None:
    async def scenario(channel: Channel, theirs: socket.socket, selector: Counting) -> None:
        value, behind = memoryview(bytearray(size)), memoryview(bytearray(64))
        filling = asyncio.create_task(channel.fill(value, behind, 2, unseen))
        await turns()
        assert _low_water(selector) > 1
        await asyncio.to_thread(theirs.sendall, bytes(size) + b"\r\n")
        await filling
        assert _low_water(selector) == 1

    run(scenario)


def _low_water(selector: Counting) -> int:
    assert selector.watched is not None
    with socket.socket(fileno=os.dup(selector.watched)) as same:
        return same.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)
