"""A whole server: what it advertises, and what a subscriber over its port learns."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import pytest
import zmq

from lmcache_client.sockets import open_socket
from lmcache_core.app.build import build
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.server import Server
from lmcache_core.app.settings import ServerSettings
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine
from lmcache_kv_events.module import KVEventBatch

SECONDS = 5.0
CHUNK_TOKENS = 16


@pytest.fixture
def server() -> Iterator[Server]:
    given = {
        "host": "127.0.0.1",
        "port": free_port(),
        "chunk_size": CHUNK_TOKENS,
        "l1_size_gb": 0.0625,
        "disable_logging": True,
    }
    server = build(ServerSettings(**given), load_plugins(["kv_events"]))  # type: ignore[arg-type]
    server.start()
    yield server
    server.stop(0.0)


def test_events_over_the_engine_port(server: Server) -> None:
    tokens = list(range(64))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = open_socket(context, zmq.DEALER)
    socket.linger = 0
    socket.connect(server.info.engine_endpoint)
    encode = msgspec.msgpack.encode
    try:
        with FakeEngine(server.info.engine_endpoint) as engine:
            assert engine.scheduler.get_experimental() == ["kv_event_stream"]
            socket.send_multipart(
                [b"uid", encode("subscribe_kv_events"), encode(1), encode("model"), encode(0), encode(8)]
            )
            time.sleep(0.2)  # the server reads tokens for it from then on
            assert engine.store(tokens)
            known: dict[bytes, list[int]] = {}
            deadline = time.monotonic() + SECONDS
            while len(known) < 4:
                assert socket.poll(int(1000 * max(0.0, deadline - time.monotonic()))), "no batch"
                uid, operation, result = socket.recv_multipart()
                assert (uid, msgspec.msgpack.decode(operation)) == (b"uid", "subscribe_kv_events")
                batch = msgspec.msgpack.decode(result, type=KVEventBatch)
                assert batch.enabled
                assert not batch.lost
                known |= {event.block_hashes[0]: event.token_ids for event in batch.events}
                socket.send_multipart([b"uid", b"", b"ack"])
            assert sorted(known.values()) == [tokens[at : at + CHUNK_TOKENS] for at in range(0, 64, CHUNK_TOKENS)]
            engine.scheduler.clear()
            assert socket.poll(int(SECONDS * 1000))
            batch = msgspec.msgpack.decode(socket.recv_multipart()[2], type=KVEventBatch)
            assert {chunk for event in batch.events for chunk in event.block_hashes} == set(known)
            assert {event.kind for event in batch.events} == {"removed"}
            socket.send_multipart([b"uid", b"", b"cancel"])
    finally:
        context.destroy(0)
