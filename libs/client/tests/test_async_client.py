from __future__ import annotations

import asyncio

import pytest

from libs.client.tests.scripted_server import ECHO, Frames, ScriptedServer, echo
from libs.client.tests.verb_table import KEY, VERBS, answer_all
from lmcache_client import operations as ops
from lmcache_client.async_client import AsyncEngineClient
from lmcache_client.errors import LMCacheError, NoAnswerError, ProtocolError


@pytest.mark.parametrize(("method", "arguments", "result"), VERBS)
def test_typed_methods(server: ScriptedServer, method: str, arguments: tuple[object, ...], result: object) -> None:
    async def ask() -> object:
        async with AsyncEngineClient(server.endpoint) as client:
            return await getattr(client, method)(*arguments)

    answer_all(server, result)
    assert asyncio.run(ask()) == result


def test_many_tasks_get_their_own_answers(server: ScriptedServer) -> None:
    waiting: list[Frames] = []

    def answer(request: Frames) -> list[Frames]:
        waiting.append(request)
        return waiting[::-1] if len(waiting) == 50 else []

    async def ask() -> list[int]:
        async with AsyncEngineClient(server.endpoint) as client:
            answers: list[int] = await asyncio.gather(*(client.call(ECHO, number) for number in range(50)))
            return answers

    server.answer = answer
    assert asyncio.run(ask()) == list(range(50))


def test_a_lookup_is_pushed(server: ScriptedServer) -> None:
    async def ask() -> int:
        async with AsyncEngineClient(server.endpoint) as client:
            return await client.lookup_hits(KEY)

    server.answer = lambda request: [[*request[:3], *([b"\x03"] if request[2] == b"\x0a" else [])]]
    assert asyncio.run(ask()) == 3
    server.answer = lambda request: [request[:3]]
    with pytest.raises(LMCacheError, match="the lookup of 'r1' is still running after 10 s"):
        asyncio.run(ask())


def test_time_outs_and_cancellation_leave_nothing(server: ScriptedServer) -> None:
    async def ask() -> None:
        async with AsyncEngineClient(server.endpoint) as client:
            with pytest.raises(NoAnswerError, match=r"no answer to 'echo' from .* within 0\.05 s"):
                await client.call(ECHO, 1, timeout_seconds=0.05)
            task = asyncio.create_task(client.call(ECHO, 2))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert client._exchange.outstanding == 0
            late = list(server.requests)
            server.answer = lambda request: [*late, request]
            assert await client.call(ECHO, 3) == 3
            assert client._exchange.outstanding == 0
            for number in range(200):
                await client.call(ECHO, number)
            assert len(client._exchange._deadlines) <= 3

    server.answer = lambda request: []
    asyncio.run(ask())


def test_close_ends_what_is_under_way(server: ScriptedServer) -> None:
    async def ask() -> None:
        client = AsyncEngineClient(server.endpoint)
        task = asyncio.create_task(client.call(ECHO, 1))
        await asyncio.sleep(0.02)
        client.close()
        client.close()
        with pytest.raises(NoAnswerError, match="was closed before 'echo' was answered"):
            await task
        with pytest.raises(NoAnswerError, match=r"is closed; 'noop' was not sent"):
            await client.noop()

    server.answer = lambda request: []
    asyncio.run(ask())


def test_it_belongs_to_one_loop(server: ScriptedServer) -> None:
    server.answer = echo
    client = AsyncEngineClient(server.endpoint)
    assert asyncio.run(client.call(ECHO, 1)) == 1
    with pytest.raises(LMCacheError, match="belongs to another event loop"):
        asyncio.run(client.call(ECHO, 2))
    client.close()


def test_answers_that_break_the_protocol(server: ScriptedServer) -> None:
    async def ask() -> None:
        async with AsyncEngineClient(server.endpoint) as client:
            with pytest.raises(ProtocolError, match="without a value"):
                await client.ping()
            server.answer = lambda request: [[*request[:2], b"\x18"]]
            with pytest.raises(ProtocolError, match="its answer says 24"):
                await client.ping()
            with pytest.raises(ProtocolError, match="end_session takes 1 arguments"):
                await client.call(ops.END_SESSION)

    asyncio.run(ask())


def test_a_server_that_knows_no_hello(server: ScriptedServer) -> None:
    async def ask() -> object:
        async with AsyncEngineClient(server.endpoint) as client:
            return await client.hello(timeout_seconds=0.05)

    server.answer = lambda request: []
    assert asyncio.run(ask()) is None


def test_a_request_that_is_not_taken_hides_no_answer(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """ZMQ consumes the wake-up before it finds that the socket is full."""

    async def ask() -> int:
        async with AsyncEngineClient(server.endpoint) as client:
            task: asyncio.Task[int] = asyncio.create_task(client.call(ECHO, 1))
            await asyncio.sleep(0)
            asyncio.get_running_loop().remove_reader(client._exchange.descriptor)  # as after such a note
            server.wait_for(1)
            await asyncio.sleep(0.05)

            def full(*arguments: object) -> bytes:
                raise NoAnswerError("injected")

            monkeypatch.setattr(client._exchange, "send", full)
            with pytest.raises(NoAnswerError, match="injected"):
                await client.call(ECHO, 2)
            return await asyncio.wait_for(task, 1)

    server.answer = echo
    assert asyncio.run(ask()) == 1


def test_a_closed_client_asks_no_hello(server: ScriptedServer) -> None:
    """None would say that the server does not know the question."""

    async def ask() -> None:
        client = AsyncEngineClient(server.endpoint)
        client.close()
        with pytest.raises(NoAnswerError, match=r"is closed; 'hello' was not sent"):
            await client.hello()

    asyncio.run(ask())
