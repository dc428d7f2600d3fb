"""A worker's in-band answers are larger than what may wait: what it frees, and its pings, are carried out all the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import zmq

from core.tests.server.conftest import StartServer
from lmcache_client.codec import OperationCodec, encode_result
from lmcache_client.operations import COMMIT_RETRIEVE, PING, PREPARE_RETRIEVE, Operation
from lmcache_core.app.server import Server
from lmcache_core.server import engine_socket
from lmcache_devkit.fake_engine import FakeEngine

MIB = 2**20
TOKENS = list(range(64))
END = 64
HIDDEN = 8192
"""Four chunks of 1 MiB are an answer."""


class SlowWorker:
    """Asks at once, and reads on request."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._dealer = context.socket(zmq.DEALER)
        self._dealer.linger = 0
        self._dealer.rcvhwm = 1
        self._dealer.setsockopt(zmq.RCVBUF, 65536)
        self._dealer.connect(endpoint)
        self._asked: list[Operation] = []

    def ask(self, operation: Operation, *payload: Any) -> None:
        uid = len(self._asked).to_bytes(4, "big")
        self._dealer.send_multipart(
            [uid, *encode_result(operation.wire_id), *OperationCodec(operation).encode_payload(payload)]
        )
        self._asked.append(operation)

    def answers(self) -> list[Any]:
        """In the order of the requests."""
        found: dict[int, Any] = {}
        while len(found) < len(self._asked) and self._dealer.poll(10_000):
            uid, _, *result = self._dealer.recv_multipart()
            number = int.from_bytes(uid, "big")
            found[number] = OperationCodec(self._asked[number]).decode_result([memoryview(frame) for frame in result])
        return [found[number] for number in range(len(self._asked))]

    def close(self) -> None:
        self._dealer.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def little_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_socket, "BYTES_MAX", MIB)


def reads_prepared(server: Server) -> int:
    return int(server.status()["modules"]["engine_driven"]["reads_prepared"])


@pytest.mark.usefixtures("little_may_wait")
@pytest.mark.parametrize("retrieves", [6, 30])
def test_commits_and_pings_are_carried_out_while_large_answers_wait(start_server: StartServer, retrieves: int) -> None:
    """Six are a worker that reads; with thirty it asks for more than may wait."""
    server = start_server()
    with FakeEngine(server.info.engine_endpoint, hidden=HIDDEN, maps_memory=False) as engine, zmq.Context() as context:
        assert engine.store(TOKENS)
        worker = SlowWorker(context, server.info.engine_endpoint)
        keys = [engine.key(TOKENS, f"r{number}", 0, END) for number in range(retrieves)]
        for key in keys:
            worker.ask(PREPARE_RETRIEVE, key, engine.instance_id)
        for key in keys:
            worker.ask(COMMIT_RETRIEVE, key, engine.instance_id)
        worker.ask(PING, engine.instance_id)
        wait_for(lambda: reads_prepared(server) == 0 and server.status()["requests"]["waiting"] > 0)
        *answers, alive = worker.answers()
        worker.close()
        assert alive is True
        assert answers[retrieves:] == [True] * retrieves
        held = [answer.success for answer in answers[:retrieves]]
        assert all(held) if retrieves == 6 else not all(held), "more than eight are refused"
        assert server.status()["l1"]["held"] == 0


@pytest.mark.usefixtures("little_may_wait")
def test_others_are_answered_while_one_does_not_read(start_server: StartServer) -> None:
    server = start_server()
    with FakeEngine(server.info.engine_endpoint, hidden=HIDDEN, maps_memory=False) as deaf, zmq.Context() as context:
        assert deaf.store(TOKENS)
        worker = SlowWorker(context, server.info.engine_endpoint)
        for number in range(30):
            worker.ask(PREPARE_RETRIEVE, deaf.key(TOKENS, f"r{number}", 0, END), deaf.instance_id)
        wait_for(lambda: server.status()["requests"]["waiting"] > 0)
        with FakeEngine(server.info.engine_endpoint, model="another") as other:
            for number in range(20):
                tokens = [number, *TOKENS[1:]]
                assert other.store(tokens)
                assert other.lookup(tokens) == 4
                assert other.retrieve(tokens) == [other.content(tokens, chunk) for chunk in range(4)]
                other.end()
        assert server.status()["requests"]["waiting"] > 0, "it has not read meanwhile"
        worker.close()


@pytest.mark.usefixtures("little_may_wait")
def test_the_commit_of_a_refused_retrieve_ends_no_other_read(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_socket, "LARGE_ANSWERS", 0, raising=False)
    server = start_server()
    with FakeEngine(server.info.engine_endpoint, hidden=HIDDEN, maps_memory=False) as engine, zmq.Context() as context:
        assert engine.store(TOKENS)
        worker = SlowWorker(context, server.info.engine_endpoint)
        key = engine.key(TOKENS, "r", 0, END)
        for _ in range(8):
            worker.ask(PREPARE_RETRIEVE, key, engine.instance_id)
            time.sleep(0.1)  # it is answered
        held = sum(answer.success for answer in worker.answers())
        assert 0 < held < 8
        for _ in range(8 - held):
            assert engine.worker.commit_retrieve(key, engine.instance_id)
        assert reads_prepared(server) == held
        for _ in range(held):
            engine.worker.commit_retrieve(key, engine.instance_id)
        worker.close()
        assert reads_prepared(server) == 0


def test_the_commit_of_a_retrieve_from_before_the_registration_ends_no_read(start_server: StartServer) -> None:
    """One thread asked before the worker registered (again), another one afterwards."""
    server = start_server()
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(TOKENS)
        engine.worker.unregister_engine_driven(engine.instance_id)
        key = engine.key(TOKENS, "r", 0, END)
        assert not engine.worker.prepare_retrieve(key, engine.instance_id).success
        engine.register()
        assert engine.worker.prepare_retrieve(key, engine.instance_id).success
        engine.worker.commit_retrieve(key, engine.instance_id)
        assert reads_prepared(server) == 1
        engine.worker.commit_retrieve(key, engine.instance_id)
        assert reads_prepared(server) == 0
