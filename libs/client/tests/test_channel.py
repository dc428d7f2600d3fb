"""A channel by itself: who gets which answer, what ends a request, and what is refused."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from random import Random

import msgspec
import pytest

from libs.client.tests.scripted_server import ECHO, Frames, ScriptedServer, echo, silent
from libs.client.tests.verb_table import KEY, VERBS, answer_all
from lmcache_client import operations as ops
from lmcache_client.channel import EngineChannel
from lmcache_client.errors import LMCacheError, NoAnswerError, ProtocolError


@pytest.mark.parametrize(("method", "arguments", "result"), VERBS)
def test_typed_methods(
    server: ScriptedServer, channel: EngineChannel, method: str, arguments: tuple[object, ...], result: object
) -> None:
    answer_all(server, result)
    assert getattr(channel, method)(*arguments) == result


def test_a_future_is_completed_without_a_waiter(server: ScriptedServer, channel: EngineChannel) -> None:
    server.answer = echo
    called = threading.Event()
    channel.submit(ECHO, 5).add_done_callback(lambda future: called.set())
    assert called.wait(10)


def test_a_lookup_sends_both_requests_at_once(server: ScriptedServer, channel: EngineChannel) -> None:
    def answer(request: Frames) -> list[Frames]:
        if len(server.requests) < 2:
            return []  # neither answered before both are there
        return [server.requests[0][:3], [*server.requests[1][:3], b"\x03"]]

    server.answer = answer
    assert channel.submit_lookup(KEY, 1, wait_seconds=5).result(10) == 3
    assert [request[2] for request in server.requests] == [b"\x08", b"\x0a"]
    assert msgspec.msgpack.decode(server.requests[1][4]) == 5.0


def test_many_threads_get_their_own_answers(server: ScriptedServer, channel: EngineChannel) -> None:
    """Answers come in heaps and out of order, to callers and futures alike."""
    generator = Random(5)
    waiting: list[Frames] = []

    def answer(request: Frames) -> list[Frames]:
        waiting.append(request)
        if len(waiting) < 4 and len(server.requests) % 7:
            return []
        generator.shuffle(waiting)
        out, waiting[:] = list(waiting), []
        return out

    def work(thread: int) -> None:
        for number in range(150):
            value = thread * 1000 + number
            if number % 3:
                assert channel.call(ECHO, value) == value
            else:
                assert channel.submit(ECHO, value).result(20) == value

    server.answer = answer
    ended = threading.Event()

    def keep_going() -> None:
        """So that no heap is left incomplete."""
        while not ended.wait(0.001):
            channel.submit(ECHO, 1)

    with ThreadPoolExecutor(8) as pool:
        filler = pool.submit(keep_going)
        done, not_done = wait([pool.submit(work, thread) for thread in range(6)], 60)
        ended.set()
        assert not not_done
        assert [each.result() for each in done] == [None] * 6
        filler.result(20)


def test_each_request_has_its_own_time_out(server: ScriptedServer, channel: EngineChannel) -> None:
    """The leading thread is notified when a shorter deadline comes."""
    server.answer = silent
    long = channel.submit(ECHO, 1, timeout_seconds=60)
    server.wait_for(1)
    with pytest.raises(NoAnswerError, match=r"no answer to 'echo' from .* within 0\.05 s"):
        channel.call(ECHO, 2, timeout_seconds=0.05)
    shorter = channel.submit(ECHO, 3, timeout_seconds=0.05)
    with pytest.raises(NoAnswerError):
        shorter.result(10)
    assert not long.done()


def test_close_ends_everything(server: ScriptedServer) -> None:
    server.answer = silent
    channel = EngineChannel(server.endpoint)
    futures = [channel.submit(ECHO, number) for number in range(3)]
    with ThreadPoolExecutor(1) as pool:
        caller = pool.submit(channel.call, ECHO, 4)
        server.wait_for(4)
        channel.close()
        channel.close()
        for each in (*futures, caller):
            with pytest.raises(NoAnswerError, match=f"the connection to {server.endpoint} was closed"):
                each.result(10)
    with pytest.raises(NoAnswerError, match=r"is closed; 'echo' was not sent"):
        channel.submit(ECHO, 1)
    assert not any(thread.name == "lmcache-channel" for thread in threading.enumerate())


@pytest.mark.parametrize("calls", [True, False])
def test_answers_that_break_the_protocol(server: ScriptedServer, channel: EngineChannel, calls: bool) -> None:
    server.answer = lambda request: [request[:2]]
    with pytest.raises(ProtocolError, match=r"an answer from .* has 1 frames"):
        channel.call(ops.NOOP) if calls else channel.submit(ops.NOOP).result(10)
    server.answer = lambda request: [[*request[:2], b"\x16", b"\xa2OK"]]
    with pytest.raises(ProtocolError, match="request 1 was 'noop', its answer says 22"):
        channel.call(ops.NOOP) if calls else channel.submit(ops.NOOP).result(10)
    server.answer = lambda request: [[*request[:3], b"\x05"]]
    with pytest.raises(ProtocolError, match="noop: result: Expected `str`"):
        channel.call(ops.NOOP) if calls else channel.submit(ops.NOOP).result(10)


def test_an_answer_without_a_request(server: ScriptedServer, channel: EngineChannel) -> None:
    server.answer = lambda request: [[request[0], b"\x63", b"\x18", b"\xa2no"], [request[0], b""], request]
    assert channel.call(ECHO, 4) == 4


def test_a_late_answer_is_dropped(server: ScriptedServer, channel: EngineChannel) -> None:
    server.answer = silent
    with pytest.raises(NoAnswerError):
        channel.call(ECHO, 1, timeout_seconds=0.05)
    server.wait_for(1)
    late = server.requests[0]
    server.answer = lambda request: [late, request]
    assert channel.call(ECHO, 2) == 2


def test_a_full_socket_says_so_at_once() -> None:
    with EngineChannel("tcp://127.0.0.1:9", timeout_seconds=600) as channel:
        refused = None
        while refused is None:
            try:
                channel.submit(ECHO, 1)
            except NoAnswerError as error:
                refused = str(error)
    assert "'echo' was not sent to tcp://127.0.0.1:9: as many requests as the socket takes wait to be sent" in refused


def test_no_server() -> None:
    with (
        EngineChannel("tcp://127.0.0.1:9", timeout_seconds=0.05) as channel,
        pytest.raises(NoAnswerError, match="is a server running there"),
    ):
        channel.ping()


def test_an_endpoint_that_is_none() -> None:
    with pytest.raises(LMCacheError, match=r"cannot connect to 'localhost'"):
        EngineChannel("localhost")


def test_wrong_arguments_are_not_sent(server: ScriptedServer, channel: EngineChannel) -> None:
    with pytest.raises(ProtocolError, match="end_session takes 1 arguments, 0 were given"):
        channel.submit(ops.END_SESSION)
    channel.end_session("r1")
    assert len(server.requests) == 1


def test_a_server_that_comes_back(server: ScriptedServer, channel: EngineChannel) -> None:
    server.answer = echo
    assert channel.call(ECHO, 1) == 1
    server.close()
    with pytest.raises(NoAnswerError):
        channel.call(ECHO, 2, timeout_seconds=0.05)
    another = ScriptedServer(server.endpoint)
    try:
        another.answer = echo
        assert channel.call(ECHO, 3) == 3
    finally:
        another.close()


def test_a_forked_process_gets_an_error(server: ScriptedServer, channel: EngineChannel) -> None:
    child = os.fork()
    if not child:
        try:
            channel.noop()
        except LMCacheError as error:
            os._exit(0 if "was made in another process" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_nothing_is_kept_of_what_has_ended(server: ScriptedServer, channel: EngineChannel) -> None:
    server.answer = echo
    for number in range(500):
        channel.call(ECHO, number)
    assert channel._exchange.outstanding == 0
    assert len(channel._exchange._deadlines) <= 1


def test_a_request_without_a_time_limit(server: ScriptedServer, channel: EngineChannel) -> None:
    """It must not take down the thread that serves the others."""
    server.answer = silent
    never = channel.submit(ECHO, 1, timeout_seconds=float("inf"))
    server.wait_for(1)
    with pytest.raises(NoAnswerError):
        channel.submit(ECHO, 2, timeout_seconds=0.05).result(10)
    server.answer = echo
    assert channel.call(ECHO, 3, timeout_seconds=float("inf")) == 3
    assert not never.done()


def test_a_process_that_was_forked_in_the_middle_of_a_request(server: ScriptedServer, channel: EngineChannel) -> None:
    with channel._lock:
        child = os.fork()
        if not child:
            signal.alarm(10)  # where the child waits for a lock that is never released
            try:
                channel.submit(ops.NOOP)
            except LMCacheError as error:
                os._exit(0 if "was made in another process" in str(error) else 1)
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
