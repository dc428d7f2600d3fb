"""Answers without a request: a request that gets one takes the wrong answer for its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from lmcache_core import Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key
from lmcache_devkit.l2_driver import L2Driver
from lmcache_devkit.l2_suite import OBJECT_BYTES
from lmcache_l2_redis.address import Address
from lmcache_l2_redis.connection import Dialer, Login
from lmcache_l2_redis.node import Node
from lmcache_l2_redis.replies import command
from plugins.l2_redis.tests.scripted import Scripted

DONE, MISSING, FAILED = Outcome.DONE, Outcome.MISSING, Outcome.FAILED
OpenRedis = Callable[..., L2Driver]


def test_a_connection_on_which_too_much_came_is_not_believed_and_not_used_again(
    scripted: Scripted, open_at: OpenRedis
) -> None:
    driver = open_at(scripted.port)
    scripted.answers = {"EXISTS": [b":0\r\n:1\r\n", b":0\r\n"]}
    assert driver.has(object_key(1)) == (FAILED,)
    assert driver.has(object_key(2)) == (MISSING,)


def test_nor_is_one_whose_value_was_followed_by_another(
    scripted: Scripted, open_at: OpenRedis, memory: BorrowedMemory
) -> None:
    driver = open_at(scripted.port)
    scripted.answers = {"GET": [b"$-1\r\n$%d\r\n" % OBJECT_BYTES, b"$-1\r\n"]}
    assert driver.load((object_key(1), memory.lend(OBJECT_BYTES))) == (FAILED,)
    assert driver.load((object_key(2), memory.lend(OBJECT_BYTES))) == (MISSING,)


def test_nor_is_one_that_refused_and_said_more(scripted: Scripted, open_at: OpenRedis, memory: BorrowedMemory) -> None:
    driver = open_at(scripted.port)
    scripted.answers = {"GET": [b"-NOPERM no\r\n$-1\r\n$-1\r\n", b"-NOPERM no\r\n"]}
    assert driver.load((object_key(1), memory.lend(OBJECT_BYTES))) == (FAILED,)
    assert driver.load((object_key(2), memory.lend(OBJECT_BYTES))) == (FAILED,)


@pytest.mark.parametrize("push", [b">2\r\n+message\r\n:1\r\n", b">1\r\n>0\r\n"])
def test_what_is_pushed_unasked_is_not_an_answer(scripted: Scripted, open_at: OpenRedis, push: bytes) -> None:
    driver = open_at(scripted.port)
    scripted.answers = {"EXISTS": [push]}
    assert driver.has(object_key(1)) == (FAILED,)


def test_questions_to_a_node_that_is_closed_at_once_are_answered(scripted: Scripted) -> None:
    async def resolve(*_: object, **__: object) -> list[object]:
        return []

    async def ask() -> None:
        node = Node(Address("127.0.0.1", scripted.port), Dialer(Login(), None, 5, resolve), 60)
        question = asyncio.create_task(node.ask(command("EXISTS", "x")))
        await asyncio.sleep(0)  # it is submitted, and the task that sends it has not taken a step
        node.close()
        with pytest.raises(ConnectionError, match="closed"):
            await asyncio.wait_for(question, 10)

    asyncio.run(ask())
