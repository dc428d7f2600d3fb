"""For each hook: a server that is given a third party's offer uses it.  A hook without a test here is an error."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import zmq

from lmcache_core.app.build import build
from lmcache_core.app.cli import main
from lmcache_core.app.configuration import read_settings
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.server import Server
from lmcache_core.contracts import hookspecs
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine
from tests.hooks import third_party

PLUGIN = third_party.__name__
TOKENS = list(range(64))


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as server:
        yield server


@contextmanager
def running(**more: Any) -> Iterator[Server]:
    third_party.CALLS.clear()
    settings: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": 0,
        "chunk_size": 16,
        "l1_size_gb": 1 / 16,
        "http_port": free_port(),
        "shm_name": "" if more else f"test-{uuid.uuid4().hex}",
        "l2_adapter": ({"type": "shelf", "serde": "mask"},),
        "eviction_policy": "any_victim",
        "l2_store_policy": "to_all",
        "l2_prefetch_policy": "from_first",
        **more,
    }
    plugins = load_plugins([PLUGIN, "serde", "admin"])
    server = build(read_settings({**settings, "listener_word": "heard"}, plugins), plugins)
    server.start()
    try:
        yield server
    finally:
        server.stop(5.0)


@pytest.fixture
def engine(server: Server) -> Iterator[FakeEngine]:
    with FakeEngine(server.info.engine_endpoint) as engine:
        yield engine


def wait_for(what: str, count: int = 1) -> None:
    end = time.monotonic() + 20
    while third_party.CALLS.count(what) < count:
        assert time.monotonic() < end, f"{what} did not come: {third_party.CALLS}"
        time.sleep(0.01)


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end, third_party.CALLS
        time.sleep(0.01)


def is_empty_after_clear(server: Server, engine: FakeEngine) -> bool:
    engine.scheduler.clear(force=True)
    return bool(server.status()["l1"]["cached"] == 0)


def test_lmcache_l1_memories() -> None:
    """Every byte of L1 is in it, and it is closed when the server has stopped."""
    with running(offer_settings={"l1_memory:cellar": {}}) as server:
        with FakeEngine(server.info.engine_endpoint) as engine:
            assert engine.segment is None, "it has no name that an engine could map"
            assert engine.store(TOKENS)
            assert engine.lookup(TOKENS) == 4
            reply = engine.worker.prepare_retrieve(engine.key(TOKENS, "r", 0, len(TOKENS)), engine.instance_id)
            assert all(engine.content(TOKENS, chunk) in reply.data for chunk in range(4))
        assert "memory.fetch" in third_party.CALLS
        assert server.status()["l1"]["kind"] == "cellar"
        assert "memory.close" not in third_party.CALLS
    assert "memory.close" in third_party.CALLS


def test_lmcache_l2_adapters(server: Server, engine: FakeEngine) -> None:
    assert engine.store(TOKENS)
    wait_for("adapter.store", 4)
    wait_until(lambda: is_empty_after_clear(server, engine))
    assert engine.lookup(TOKENS) == 4
    assert third_party.CALLS.count("adapter.load") == 4
    assert engine.retrieve(TOKENS) == [engine.content(TOKENS, chunk) for chunk in range(4)]


def test_lmcache_serdes(server: Server, engine: FakeEngine) -> None:
    """It gets the layout that the engine has registered."""
    assert engine.store(TOKENS)
    wait_for("adapter.store", 4)
    wait_until(lambda: is_empty_after_clear(server, engine))
    assert engine.lookup(TOKENS) == 4
    assert engine.retrieve(TOKENS) == [engine.content(TOKENS, chunk) for chunk in range(4)]
    assert third_party.CALLS.count(f"serde.encode {engine.layout}") == 4
    assert third_party.CALLS.count(f"serde.decode {engine.layout}") == 4


def test_lmcache_eviction_policies(server: Server, engine: FakeEngine) -> None:
    """A store that is larger than L1 is what asks for victims."""
    chunks = server.status()["l1"]["capacity_bytes"] // engine.layout.payload_bytes
    for start in range(0, chunks, 512):
        engine.store([start, *range(512 * 16 - 1)], request=f"r{start}")
    engine.lookup(TOKENS)
    wait_for("eviction.victims")
    assert "eviction.on_insert" in third_party.CALLS


def test_lmcache_store_policies(engine: FakeEngine) -> None:
    engine.store(TOKENS)
    wait_for("store.plan")


def test_lmcache_prefetch_policies(engine: FakeEngine) -> None:
    engine.lookup(TOKENS)
    wait_for("prefetch.plan")


def test_lmcache_request_modules(server: Server) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(server.info.engine_endpoint)
        socket.send_multipart([b"1", msgspec.msgpack.encode("third_party_greet"), msgspec.msgpack.encode("world")])
        assert socket.poll(10_000)
        assert msgspec.msgpack.decode(socket.recv_multipart()[-1]) == "hello world"


def test_lmcache_subscribers(engine: FakeEngine) -> None:
    engine.store(TOKENS)
    wait_for("subscriber.stored 4")


def test_lmcache_http_routes(server: Server) -> None:
    assert server.info.http_endpoint
    wait_until(lambda: can_be_asked(f"{server.info.http_endpoint}/healthcheck"))
    with urllib.request.urlopen(f"{server.info.http_endpoint}/third_party/world", timeout=10) as answer:
        assert json.load(answer) == {"hello": "world", "chunks": 16, "listener": "Listener"}


def can_be_asked(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except urllib.error.URLError:
        return False


def test_lmcache_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--plugin", PLUGIN, "shout", "hello", "there"]) == 7
    assert capsys.readouterr().out == "HELLO THERE / LRU any_victim\n"


def test_lmcache_services(server: Server) -> None:
    assert "service.start third_party://watch 16" in third_party.CALLS
    wait_for("service.runs")
    assert server.status()["services"]["watch"] == {"chunk_size": 16}
    assert server.status()["threads"]["watch-run"]["running"]
    assert "lmcache.watch.looks" in [kind.name for kind in server.sample_kinds]
    values = {sample.name: sample.value for sample in server.samples()}
    assert values["lmcache.watch.looks"] == 7
    assert "lmcache.of.no.kind" not in values
    server.stop(5.0)
    assert third_party.CALLS[-2:] == ["service.stop 5.0", "service.close"]


def test_lmcache_transfer_channels(server: Server) -> None:
    """A service opens it, for L1's memory."""
    assert "channel 127.0.0.1 True" in third_party.CALLS
    assert "channel.close" in third_party.CALLS


def test_lmcache_settings(server: Server) -> None:
    assert third_party.CALLS.count("applied heard ['listener_word']") == 1


def test_lmcache_server_started(server: Server) -> None:
    assert third_party.CALLS.count("started 16") == 1


def test_lmcache_server_stopping(server: Server) -> None:
    assert "stopping" not in third_party.CALLS
    server.stop(5.0)
    assert third_party.CALLS.count("stopping") == 1


def test_every_hook_is_tested_here() -> None:
    hooks = [name for name, value in vars(hookspecs).items() if hasattr(value, f"{hookspecs.PROJECT}_spec")]
    assert len(hooks) >= 9
    assert [hook for hook in hooks if f"test_{hook}" not in globals()] == []
