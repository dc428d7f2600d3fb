"""The engine port's own socket: which connections it knows, and what waits for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from core.tests.server.test_handshakes import until
from lmcache_core.contracts.clock import SystemClock
from lmcache_core.server.engine_socket import EngineSocket, Envelope

ID = b"worker"


@pytest.fixture
def port() -> Iterator[EngineSocket]:
    port = EngineSocket(1 << 20, SystemClock())
    yield port
    port.close()


def ask(port: EngineSocket, client: zmq.Socket[bytes], endpoint: str) -> Envelope:
    client.setsockopt(zmq.ROUTING_ID, ID)
    client.setsockopt(zmq.LINGER, 0)
    for _ in range(10):
        client.connect(endpoint)
        client.send_multipart([b"uid", b"\x16"])
        if port.socket.poll(2000):
            break
        client.disconnect(endpoint)  # libzmq ignores it until it has forgotten the connection before
    message = port.receive()
    assert message is not None
    assert message.envelope[0] == ID
    return message.envelope


def test_a_client_with_an_id_of_its_own_reconnects(port: EngineSocket) -> None:
    endpoint = port.bind("127.0.0.1", 0)
    with zmq.Context() as context:
        for _ in range(3):
            with context.socket(zmq.DEALER) as client:
                ask(port, client, endpoint)
                assert port.is_connected(ID), "it lives"
            assert until(lambda: not port.socket.poll(50) and not port.is_connected(ID))


def test_answers_that_waited_for_the_connection_before_are_dropped(port: EngineSocket) -> None:
    endpoint = port.bind("127.0.0.1", 0)
    with zmq.Context() as context:
        with context.socket(zmq.DEALER) as client:
            port.waiting.add(ask(port, client, endpoint), [b"old"])
        assert until(lambda: not port.socket.poll(50) and not port.is_connected(ID))
        with context.socket(zmq.DEALER) as client:
            port.send(ask(port, client, endpoint), [b"new"])
            assert client.poll(10_000)
            assert client.recv_multipart()[-1] == b"new"
    assert port.dropped == 1
