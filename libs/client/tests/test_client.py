from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from libs.client.tests.scripted_server import Frames, ScriptedServer
from libs.client.tests.verb_table import KEY, VERBS, answer_all
from lmcache_client import operations as ops
from lmcache_client.client import EngineClient
from lmcache_client.errors import LMCacheError, NoAnswerError, ProtocolError
from lmcache_client.operations import Operation


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


@pytest.mark.parametrize(("method", "arguments", "result"), VERBS)
def test_typed_methods(
    server: ScriptedServer, client: EngineClient, method: str, arguments: tuple[object, ...], result: object
) -> None:
    answer_all(server, result)
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


def test_a_lookup_without_end_is_abandoned(server: ScriptedServer) -> None:
    with (
        EngineClient(server.endpoint, timeout_seconds=0.3) as client,
        pytest.raises(LMCacheError, match=r"the lookup of 'r1' is still running after 0\.3 s"),
    ):
        client.lookup_hits(KEY)


def test_no_answer_in_time(server: ScriptedServer, client: EngineClient) -> None:
    server.answer = lambda _request: []
    with pytest.raises(NoAnswerError, match=rf"no answer to 'noop' from {server.endpoint} within 0.05 s"):
        client.call(ops.NOOP, timeout_seconds=0.05)


def test_a_late_answer_is_dropped_and_its_ticket_void(server: ScriptedServer, client: EngineClient) -> None:
    server.answer = lambda _request: []
    ticket = client.send(ops.NOOP)
    with pytest.raises(LMCacheError, match="no answer"):
        client.receive(ticket, 0.05)
    server.wait_for(1)
    late = [*server.requests[0][:3], b"\xa4late"]
    server.answer = lambda request: [late, [*request[:3], b"\xa2OK"]]
    assert client.noop() == "OK"
    assert client._answers == {}, "a late answer is kept for ever"
    with pytest.raises(ValueError, match="request 0 is not outstanding"):
        client.receive(ticket)


def test_no_server() -> None:
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


def test_a_server_that_knows_no_hello(server: ScriptedServer, client: EngineClient) -> None:
    server.answer = lambda request: []
    assert client.hello(timeout_seconds=0.05) is None
    server.answer = lambda request: [request[:3]]
    assert client.hello() is None, "an answer without a value"


def test_the_call_after_a_server_came_back(server: ScriptedServer) -> None:
    with EngineClient(server.endpoint, timeout_seconds=10) as client:
        client.end_session("r1")
        server.close()
        with pytest.raises(NoAnswerError):
            client.ping(timeout_seconds=0.05)
        another = ScriptedServer(server.endpoint)
        try:
            another.answer = lambda request: [[*request[:3], b"\xa2OK"]]
            assert client.noop() == "OK"
        finally:
            another.close()


def test_importing_the_library_loads_no_other() -> None:
    script = "import sys, lmcache_client; print(sorted({'zmq', 'msgspec', 'blake3', 'cbor2'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_closed_client_says_so(server: ScriptedServer, client: EngineClient) -> None:
    server.answer = lambda request: []
    ticket = client.send(ops.NOOP)
    client.close()
    client.close()
    with pytest.raises(NoAnswerError, match="was closed before 'noop' was answered"):
        client.receive(ticket)
    with pytest.raises(NoAnswerError, match=r"is closed; 'noop' was not sent"):
        client.noop()


def test_a_forked_process_gets_an_error(server: ScriptedServer, client: EngineClient) -> None:
    child = os.fork()
    if not child:
        signal.alarm(10)
        try:
            client.noop()
        except LMCacheError as error:
            os._exit(0 if "was made in another process" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_request_without_a_time_limit(server: ScriptedServer) -> None:
    server.answer = lambda request: [[*request[:3], b"\xa2OK"]]
    with EngineClient(server.endpoint, timeout_seconds=float("inf")) as client:
        assert client.noop() == "OK"


def test_a_closed_client_asks_no_hello(server: ScriptedServer, client: EngineClient) -> None:
    """None would say that the server does not know the question."""
    client.close()
    with pytest.raises(NoAnswerError, match=r"is closed; 'hello' was not sent"):
        client.hello()
