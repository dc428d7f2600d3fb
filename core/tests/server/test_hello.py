"""What a server says of itself, and to whom: clients of ours, against a whole server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from lmcache_client.async_client import AsyncEngineClient
from lmcache_client.channel import EngineChannel
from lmcache_client.client import EngineClient
from lmcache_client.engine_key import EngineKey
from lmcache_client.heartbeat import Heartbeat, ServerChange
from lmcache_client.l1_segment import L1Segment
from lmcache_client.messages import ServerHello
from lmcache_client.operations import KNOWN_REQUESTS, Operation
from lmcache_client.prompt_tokens import PromptTokens
from lmcache_core import __version__
from lmcache_core.app.server import Server
from lmcache_devkit.fake_engine import FakeEngine

StartServer = Callable[..., Server]
TOKENS = list(range(64))


def test_hello_says_which_server_this_is(server: Server, endpoint: str) -> None:
    with EngineClient(endpoint) as client:
        hello = client.hello("a test")
    assert hello is not None
    segment = server._parts.tiers.arena.segment or ""
    expected = (server.info.boot_id, server.info.instance_id, __version__, 16, segment, 2**26)
    assert (
        hello.boot_id,
        hello.instance_id,
        hello.version,
        hello.chunk_tokens,
        hello.segment,
        hello.l1_bytes,
    ) == expected
    assert list(hello.operations) == sorted({*hello.operations})
    assert {"hello", "ping", "lookup", "prepare_store"} <= set(hello.operations)
    assert "cb_unified_lookup" not in hello.operations, "known, and answered by its negative value alone"
    assert {each.name for each in KNOWN_REQUESTS} - set(hello.operations)


def test_a_server_without_shared_memory_names_none(start_server: StartServer) -> None:
    server = start_server(l1_shared_memory=False)
    with EngineClient(server.info.engine_endpoint) as client:
        hello = client.hello()
    assert hello is not None
    assert (hello.segment, hello.l1_bytes) == ("", 2**26)


def test_a_hello_of_a_later_version_is_read(endpoint: str) -> None:
    """Fields that are not known here are ignored, in both directions."""
    more = Operation("hello", None, (dict[str, str],), ServerHello)
    with EngineClient(endpoint) as client:
        assert client.call(more, {"client": "x", "speaks": "everything"}) is not None
        assert client.call(more, {}) is not None


def test_store_look_up_and_retrieve_over_a_channel(endpoint: str) -> None:
    """As a connector does: chunks go through the mapped segment, the lookup's answer is pushed."""
    with FakeEngine(endpoint) as engine, EngineChannel(endpoint) as channel:
        hello = channel.hello()
        assert hello is not None
        with L1Segment(hello.segment, hello.l1_bytes) as segment:
            prompt = PromptTokens(TOKENS)
            prompt.extend([1, 2, 3])
            key = EngineKey("model", 1, 0, prompt.encoded(), 0, 64, "r", "", None, 1)
            prepared = channel.prepare_store(key, engine.instance_id).context
            assert isinstance(prepared.slots, tuple)
            for number, slot in enumerate(prepared.slots):
                segment.prefault(slot.offset, slot.length)
                segment.payload(slot)[:] = engine.content(TOKENS, number)
            assert channel.commit_store(key, engine.instance_id)
            ask = EngineKey("model", 1, None, prompt.encoded(), 0, 64, "r", "", None, 1)
            assert channel.submit_lookup(ask, wait_seconds=5).result(10) == 4
            found = channel.prepare_retrieve(key, engine.instance_id)
            assert found.success
            assert isinstance(found.context.slots, tuple)
            read = [bytes(segment.payload(slot)) for slot in found.context.slots]
            assert channel.commit_retrieve(key, engine.instance_id)
    assert read == [engine.content(TOKENS, number) for number in range(4)]


def test_a_heartbeat_sees_a_restart_that_no_ping_saw(start_server: StartServer) -> None:
    server = start_server()
    port = int(server.info.engine_endpoint.rpartition(":")[2])
    changes: list[ServerChange] = []
    answered = threading.Event()

    def note(change: ServerChange) -> None:
        changes.append(change)
        answered.set()

    with EngineChannel(server.info.engine_endpoint) as channel:
        heart = Heartbeat(channel, note, interval_seconds=5, hello=channel.hello())
        server.stop(5.0)
        start_server(port=port)
        heart.start()
        assert answered.wait(20)
        heart.stop()
    assert changes == [ServerChange.RESTARTED]


def test_the_async_client_against_a_server(endpoint: str) -> None:
    async def ask() -> int:
        async with AsyncEngineClient(endpoint) as client:
            hello = await client.hello()
            assert hello is not None
            key = EngineKey("model", 1, None, PromptTokens(TOKENS).encoded(), 0, 64, "r", "", None, 1)
            return await client.lookup_hits(key)

    with FakeEngine(endpoint) as engine:
        assert engine.store(TOKENS)
        assert asyncio.run(ask()) == 4
