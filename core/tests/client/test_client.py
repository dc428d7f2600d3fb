from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest
import zmq

from lmcache_core.client.client import EngineClient
from lmcache_core.contracts.operation import Operation
from lmcache_core.model.errors import LMCacheError, ProtocolError
from lmcache_core.wire import operations as ops
from lmcache_core.wire.codec import OperationTable, encode_result
from lmcache_core.wire.messages import (
    BlockAllocation,
    EngineDrivenRegistration,
    EngineKey,
    PrepareRetrieveReply,
    PrepareStoreReply,
    SharedMemoryOffer,
    StoreContext,
)
from lmcache_core.wire.tokens import encode_tokens

KEY = EngineKey("m", 1, None, encode_tokens(range(64)), 0, 64, "r1")
REGISTRATION = EngineDrivenRegistration(7, "m", 1, 16, 2, 64, "bfloat16", True, 64)

Frames = list[bytes]


class ScriptedServer:
    """A ROUTER on a thread; `answer` turns one request `[identity, uid, operation, payload...]` into messages."""

    def __init__(self) -> None:
        self.requests: list[Frames] = []
        self.answer: Callable[[Frames], list[Frames]] = lambda request: [request[:3]]
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self.endpoint = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._socket.poll(20):
                self.requests.append(self._socket.recv_multipart())
                for message in self.answer(self.requests[-1]):
                    self._socket.send_multipart(message)
        self._socket.close()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(10)
        self._context.term()


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    yield scripted
    scripted.close()


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[EngineClient]:
    with EngineClient(server.endpoint, timeout_seconds=10) as connected:
        yield connected


def test_requests_are_numbered_and_have_one_frame_per_argument(server: ScriptedServer, client: EngineClient) -> None:
    client.end_session("r1")
    client.lookup(KEY, 2)
    client.clear(force=True)
    sent = [request[1:] for request in server.requests]
    assert sent == [
        [b"\x00", b"\x0d", b"\xa2r1"],
        [b"\x01", b"\x08", msgspec.msgpack.encode(KEY), b"\x02"],
        [b"\x02", b"\x14", b"\xc3"],
    ]


def test_an_operation_of_a_plugin_can_be_called(server: ScriptedServer, client: EngineClient) -> None:
    server.answer = lambda request: [[*request[:3], b"\x05"]]
    assert client.call(Operation("acme_count", None, (str,), int), "x") == 5
    assert server.requests[0][2:] == [b"\xaaacme_count", b"\xa1x"]


@pytest.mark.parametrize(
    ("method", "arguments", "result"),
    [
        ("get_chunk_size", (), 256),
        ("get_experimental", (), ["transfer_query"]),
        ("ping", (), True),
        ("ping", (7,), False),
        ("noop", (), "OK"),
        ("clear", (), None),
        ("lookup", (KEY,), None),
        ("query_prefetch_status", ("r1",), None),
        ("query_prefetch_status", ("r1",), 4),
        ("wait_prefetch_status", ("r1", 1), 4),
        ("lookup_hits", (KEY,), 4),
        ("free_lookup_locks", (KEY,), None),
        ("end_session", ("r1",), None),
        ("report_block_allocation", (1, "m", (BlockAllocation("r", [1], [2]),)), None),
        ("register_engine_driven", (REGISTRATION,), SharedMemoryOffer("pool", 4096)),
        ("unregister_engine_driven", (7,), None),
        ("prepare_store", (KEY, 7), PrepareStoreReply(StoreContext((), ()))),
        ("commit_store", (KEY, 7), True),
        ("commit_store", (KEY, 7, b"data"), False),
        ("prepare_retrieve", (KEY, 7), PrepareRetrieveReply(True, b"data")),
        ("commit_retrieve", (KEY, 7), True),
    ],
)
def test_typed_methods(
    server: ScriptedServer, client: EngineClient, method: str, arguments: tuple[object, ...], result: object
) -> None:
    table = OperationTable(ops.OPERATIONS)

    def answer(request: Frames) -> list[Frames]:
        table.find(request[2]).decode_payload(request[3:])
        return [[*request[:3], *map(bytes, encode_result(result))]]

    server.answer = answer
    assert getattr(client, method)(*arguments) == result


def test_answers_come_in_any_order(server: ScriptedServer, client: EngineClient) -> None:
    held: list[Frames] = []

    def answer(request: Frames) -> list[Frames]:
        held.append([*request[:3], msgspec.msgpack.encode(len(held))])
        return held[::-1] if len(held) == 3 else []

    server.answer = answer
    tickets = [client.send(ops.QUERY_PREFETCH_STATUS, f"r{number}") for number in range(3)]
    assert [client.receive(ticket) for ticket in tickets] == [0, 1, 2]


def test_a_lookup_is_asked_for_until_it_has_an_answer(server: ScriptedServer, client: EngineClient) -> None:
    def answer(request: Frames) -> list[Frames]:
        done = len(server.requests) == 4
        return [[*request[:3], *([b"\x03"] if done else [])]]

    server.answer = answer
    assert client.lookup_hits(KEY) == 3
    assert [request[2] for request in server.requests] == [b"\x08", b"\x09", b"\x09", b"\x09"]


def test_a_lookup_without_end_is_given_up(server: ScriptedServer) -> None:
    with (
        EngineClient(server.endpoint, timeout_seconds=0.3) as client,
        pytest.raises(LMCacheError, match=r"the lookup of 'r1' is still running after 0\.3 s"),
    ):
        client.lookup_hits(KEY)


def test_no_answer_in_time(server: ScriptedServer, client: EngineClient) -> None:
    server.answer = lambda _request: []
    with pytest.raises(LMCacheError, match=rf"no answer to 'noop' from {server.endpoint} within 0.05 s"):
        client.call(ops.NOOP, timeout_seconds=0.05)


def test_a_late_answer_is_dropped_and_its_ticket_void(server: ScriptedServer, client: EngineClient) -> None:
    server.answer = lambda _request: []
    ticket = client.send(ops.NOOP)
    with pytest.raises(LMCacheError, match="no answer"):
        client.receive(ticket, 0.05)
    while not server.requests:
        time.sleep(0.005)
    late = [*server.requests[0][:3], b"\xa4late"]
    server.answer = lambda request: [late, [*request[:3], b"\xa2OK"]]
    assert client.noop() == "OK"
    assert client._answers == {}, "a late answer is kept for ever"
    with pytest.raises(ValueError, match="request 0 is not outstanding"):
        client.receive(ticket)


def test_nobody_there() -> None:
    with EngineClient("tcp://127.0.0.1:9", timeout_seconds=0.05) as client:
        with pytest.raises(LMCacheError, match="is a server running there"):
            client.ping()
        client.close()


def test_an_endpoint_that_is_none() -> None:
    with pytest.raises(LMCacheError, match=r"cannot connect to 'localhost'.*tcp://127\.0\.0\.1:5555"):
        EngineClient("localhost")


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "an answer from .* has 1 frames"),
        ([b"\x16", b"\xa2OK"], "request 0 was 'noop', its answer says 22"),
        ([b"\xa4ping", b"\xa2OK"], "request 0 was 'noop', its answer says 'ping'"),
        ([b"\xc0"], "operation frame"),
        ([b"\x18", b"\x05"], "noop: result: Expected `str`"),
        ([b"\x18"], "answered 'noop' without a value"),
    ],
)
def test_answers_that_break_the_protocol(
    server: ScriptedServer, client: EngineClient, frames: Frames, reason: str
) -> None:
    server.answer = lambda request: [[*request[:2], *frames]]
    with pytest.raises(ProtocolError, match=reason):
        client.noop()


def test_a_server_may_answer_with_the_name(server: ScriptedServer, client: EngineClient) -> None:
    server.answer = lambda request: [[*request[:2], b"\xa4noop", b"\xa2OK"]]
    assert client.noop() == "OK"


def test_wrong_arguments_are_not_sent(server: ScriptedServer, client: EngineClient) -> None:
    with pytest.raises(ProtocolError, match="end_session takes 1 arguments, 0 were given"):
        client.send(ops.END_SESSION)
    client.end_session("r1")
    assert len(server.requests) == 1


def test_importing_the_public_door_does_not_load_the_transport() -> None:
    script = "import sys, lmcache_core; print(sorted({'zmq', 'msgspec', 'lmcache_core.client'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
