"""The `lm` adapter before stores that break off, freeze, lie, or have other clients."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Callable
from typing import Final

import pytest

from lmcache_core import HEADER_BYTES, BorrowedBuffer, LMCacheError, LoadItem, ObjectKey, Outcome
from lmcache_devkit import free_port
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key, payload_of
from lmcache_l2_lm.adapter import open_lm
from lmcache_l2_lm.config import LmSettings
from lmcache_l2_lm.doctor import check
from lmcache_l2_lm.frames import REQUEST_BYTES, Answer, Request, Verb, bytes_form, key_of, pack_answer, parse_request
from plugins.l2_lm.tests.conftest import OpenLm
from plugins.l2_lm.tests.running import HOST, Client, Running, running
from tests.remote.loop_server import LoopServer
from tests.remote.tcp_proxy import CutAfter, Nothing, Silence, TcpProxy, Way

KEY: Final = object_key(1)
SIZE: Final = 100_000
DONE, MISSING, FAILED, TIMED_OUT = Outcome.DONE, Outcome.MISSING, Outcome.FAILED, Outcome.TIMED_OUT
DAMAGED, FOREIGN, REJECTED = Outcome.DAMAGED, Outcome.FOREIGN, Outcome.REJECTED

Says = Callable[[Request], bytes | None]


class Scripted(LoopServer):
    """Answers what a test says; None: hangs up.  A HEALTH is well."""

    def __init__(self, says: Says) -> None:
        super().__init__()
        self._says: Final = says

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = parse_request(await reader.readexactly(REQUEST_BYTES))
            if request.verb is Verb.PUT:
                await reader.readexactly(request.length)
                continue
            answer = pack_answer(Answer(True)) if request.verb is Verb.HEALTH else self._says(request)
            if answer is None:
                return
            writer.write(answer)
            await writer.drain()


def whole(memory: BorrowedMemory, number: int = 1, size: int = SIZE) -> tuple[ObjectKey, BorrowedBuffer]:
    key = object_key(number)
    return key, memory.sealed(key, payload_of(number, size))


def empty(memory: BorrowedMemory, number: int = 1, size: int = SIZE) -> tuple[ObjectKey, BorrowedBuffer]:
    return object_key(number), memory.lend(HEADER_BYTES + size)


def value(memory: BorrowedMemory, number: int = 1) -> bytes:
    return bytes(whole(memory, number)[1].view)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"", FAILED),
        (pack_answer(Answer(True, HEADER_BYTES + SIZE))[:20], TIMED_OUT),
        (pack_answer(Answer(True, HEADER_BYTES + SIZE)) + b"x" * 50_000, TIMED_OUT),
        (struct.pack("9i", 302, 0, 0, 0, 0, 0, 0, 0, 0), FAILED),
        (struct.pack("9i", 200, -1, 0, 0, 0, 0, 0, 0, 0), FAILED),
        (struct.pack("9i", 400, 5, 0, 0, 0, 0, 0, 0, 0), FAILED),
        (pack_answer(Answer(True, 5)) + b"hello", FOREIGN),
        (pack_answer(Answer(True, 0)), DAMAGED),
        (pack_answer(Answer(True, HEADER_BYTES + SIZE)) + b"x" * (HEADER_BYTES + SIZE), FOREIGN),
        (pack_answer(Answer(True, 2 << 20)) + b"x" * (2 << 20), FOREIGN),
        (pack_answer(Answer(False)), MISSING),
    ],
)
def test_whatever_a_store_answers_no_wrong_byte_is_a_hit(
    memory: BorrowedMemory, open_at: OpenLm, answer: bytes, expected: Outcome
) -> None:
    with Scripted(lambda request: answer or None) as server:
        driver = open_at(server.port, timeout_seconds=1)
        assert driver.verified_load(empty(memory)) == (expected,)


def test_a_store_that_hangs_up_in_the_middle_fails_one_object_and_serves_the_next(
    store: Running, memory: BorrowedMemory, open_at: OpenLm
) -> None:
    with TcpProxy(store.port) as proxy:
        driver = open_at(proxy.port)
        assert driver.store(whole(memory), whole(memory, 2)) == (DONE, DONE)
        proxy.switch(CutAfter(ways=frozenset({Way.ANSWERS}), passed_bytes=5_000))
        assert driver.load(empty(memory)) == (FAILED,)
        proxy.switch(Nothing())
        assert driver.load(empty(memory, 2)) == (DONE,)


def test_a_store_that_freezes_costs_the_time_of_one_operation(
    store: Running, memory: BorrowedMemory, open_at: OpenLm
) -> None:
    with TcpProxy(store.port) as proxy:
        driver = open_at(proxy.port, timeout_seconds=1)
        assert driver.store(whole(memory)) == (DONE,)
        proxy.switch(Silence())
        began = time.monotonic()
        assert driver.load(empty(memory)) == (TIMED_OUT,)
        assert driver.store(whole(memory, 2)) == (TIMED_OUT,)
        assert time.monotonic() - began < 5
        proxy.switch(Nothing())
        key, buffer = empty(memory)
        assert driver.load((key, buffer)) == (DONE,)
        assert bytes(buffer.view) == value(memory)


def test_closing_before_a_frozen_store_is_quick_and_leaves_no_thread(store: Running, memory: BorrowedMemory) -> None:
    with TcpProxy(store.port) as proxy:
        settings = LmSettings(host=HOST, port=proxy.port)
        adapter = open_lm(settings, adapter_context(memory, name="lm"))
        proxy.switch(Silence())
        adapter.submit_load([LoadItem(*empty(memory))])
        adapter.submit_lookup([KEY])
        time.sleep(0.2)
        began = time.monotonic()
        adapter.close(1)
        assert time.monotonic() - began < 3
        end = time.monotonic() + 5
        while left := [thread.name for thread in threading.enumerate() if thread.name.startswith("l2-lm")]:
            assert time.monotonic() < end, left
            time.sleep(0.01)


def test_a_store_that_was_started_again_has_misses(memory: BorrowedMemory, open_at: OpenLm) -> None:
    with running() as first:
        driver = open_at(first.port)
        assert driver.store(whole(memory)) == (DONE,)
        port = first.port
    with running(port=port):
        assert driver.load(empty(memory)) == (MISSING,)
        assert driver.store(whole(memory)) == (DONE,)
        assert driver.has(KEY) == (DONE,)


def test_what_another_client_has_written_there_is_left_alone(
    store: Running, memory: BorrowedMemory, open_at: OpenLm
) -> None:
    driver = open_at(store.port)
    assert driver.store(whole(memory), whole(memory, 2)) == (DONE, DONE)
    with Client(store.port) as client:
        client.put(key_of(KEY), b"a letter" * 1_000)
        assert not client.exists()
        assert driver.verified_load(empty(memory), empty(memory, 2)) == (FOREIGN, DONE)
        assert driver.has(KEY) == (MISSING,)
        assert driver.own_store(whole(memory)) == (REJECTED,)
        found = client.get(key_of(KEY))
        assert found is not None
        assert found[1] == b"a letter" * 1_000


def test_another_object_under_the_name_is_foreign(store: Running, memory: BorrowedMemory, open_at: OpenLm) -> None:
    driver = open_at(store.port)
    with Client(store.port) as client:
        client.put(key_of(KEY), value(memory, 2))
        assert client.exists(key_of(KEY))
    assert driver.verified_load(empty(memory)) == (FOREIGN,)


@pytest.mark.parametrize(
    "harm", [lambda data: data[:-1], lambda data: data[:-1] + b"?", lambda data: data[:100], lambda data: b""]
)
def test_what_is_damaged_is_a_miss_until_it_is_stored_anew(
    store: Running, memory: BorrowedMemory, open_at: OpenLm, harm: Callable[[bytes], bytes]
) -> None:
    driver = open_at(store.port)
    assert driver.store(whole(memory)) == (DONE,)
    with Client(store.port) as client:
        data = harm(value(memory))
        client.put(key_of(KEY), data, bytes_form(len(data)))
        assert client.exists(key_of(KEY))
    assert driver.verified_load(empty(memory)) == (DAMAGED,)
    assert driver.has(KEY) == (MISSING,)
    assert driver.store(whole(memory)) == (DONE,)
    assert driver.has(KEY) == (DONE,)
    key, buffer = empty(memory)
    assert driver.load((key, buffer)) == (DONE,)
    assert bytes(buffer.view) == value(memory)


def test_a_store_without_space_rejects(memory: BorrowedMemory, open_at: OpenLm) -> None:
    with running(bytes_max=HEADER_BYTES + SIZE) as store:
        driver = open_at(store.port)
        assert driver.store(whole(memory)) == (REJECTED,)
        assert driver.adapter.counters()["refused"] == 1  # type: ignore[attr-defined]
        assert driver.store(whole(memory, 2, 10_000)) == (DONE,)


def test_many_lookups_are_asked_together(memory: BorrowedMemory, open_at: OpenLm) -> None:
    batches: list[int] = []

    class Counting(Scripted):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(1 << 20):
                count = len(data) // REQUEST_BYTES
                batches.append(count)
                writer.write(pack_answer(Answer(True)) * count)

    with Counting(lambda request: b"") as server:
        driver = open_at(server.port, num_connections=256)
        keys = [object_key(number) for number in range(200)]
        assert driver.has(*keys) == (DONE,) * 200
    assert sum(batches) == 201
    assert len(batches) < 20


def test_no_store_there_is_said_with_a_remedy(memory: BorrowedMemory) -> None:
    settings = LmSettings(host=HOST, port=free_port())
    with pytest.raises(LMCacheError, match=r"lm://127.0.0.1:\d+.*cannot be reached.*lmcache store-server"):
        open_lm(settings, adapter_context(memory, name="lm"))
    (result,) = check(settings)
    assert result.level == "fail"


def test_another_protocol_there_is_said(memory: BorrowedMemory) -> None:
    class Web(LoopServer):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()

    with Web() as server:
        settings = LmSettings(host=HOST, port=server.port)
        with pytest.raises(LMCacheError, match="an answer with code"):
            open_lm(settings, adapter_context(memory, name="lm"))


def test_doctor_sees_a_store_that_answers(store: Running) -> None:
    (result,) = check(LmSettings(host=HOST, port=store.port))
    assert result.level == "ok"
