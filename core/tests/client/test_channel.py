from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from random import Random

import msgspec
import pytest

from core.tests.client.scripted_server import Frames, ScriptedServer
from core.tests.client.verb_table import KEY, VERBS, answer_all
from lmcache_core.client.channel import EngineChannel, _complete
from lmcache_core.client.exchange import Outcome
from lmcache_core.contracts.operation import Operation
from lmcache_core.model.errors import LMCacheError, NoAnswerError, ProtocolError
from lmcache_core.wire import operations as ops

ECHO = Operation("echo", None, (int,), int)


@pytest.fixture
def channel(server: ScriptedServer) -> Iterator[EngineChannel]:
    with EngineChannel(server.endpoint, timeout_seconds=10) as connected:
        yield connected


def echo(request: Frames) -> list[Frames]:
    return [request]


def silent(request: Frames) -> list[Frames]:
    return []


def later(held: Frames) -> Callable[[Frames], list[Frames]]:
    """Answer this with the request 5, after its sender has looked for answers, so that the leader takes it in."""

    def answer(request: Frames) -> list[Frames]:
        if request[3] != b"\x05":
            return [request]
        time.sleep(0.05)
        return [held, request]

    return answer


class Held:
    """Answers that wait for a word."""

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        server.answer = silent

    def release(self) -> None:
        """With the next request, which is answered last, all are."""
        held = list(self._server.requests)
        self._server.answer = lambda request: [*held, request]


@pytest.mark.parametrize(("method", "arguments", "result"), VERBS)
def test_typed_methods(
    server: ScriptedServer, channel: EngineChannel, method: str, arguments: tuple[object, ...], result: object
) -> None:
    answer_all(server, result)
    assert getattr(channel, method)(*arguments) == result


def test_a_future_is_completed_though_nobody_waits(server: ScriptedServer, channel: EngineChannel) -> None:
    server.answer = echo
    told = threading.Event()
    channel.submit(ECHO, 5).add_done_callback(lambda future: told.set())
    assert told.wait(10)


def test_what_is_told_is_answered_to_nobody(server: ScriptedServer, channel: EngineChannel) -> None:
    """However many there are, none of their answers is taken for another one, and requests keep their order."""
    server.answer = echo
    for number in range(2000):
        channel.tell(ECHO, number)
        if not number % 100:
            assert channel.call(ECHO, -number) == -number
    assert channel.call(ECHO, 7) == 7
    values = [msgspec.msgpack.decode(request[3]) for request in server.requests]
    assert [value for value in values if value > 0] == [*range(1, 2000), 7]


def test_what_is_told_leaves_futures_to_be_completed(server: ScriptedServer, channel: EngineChannel) -> None:
    """Whoever tells takes in what has arrived for others."""
    server.answer = echo
    futures = []
    for number in range(300):
        futures.append(channel.submit(ECHO, number))
        channel.tell(ECHO, 1000)
    assert [future.result(10) for future in futures] == list(range(300))


def test_nothing_is_told_over_a_closed_channel(server: ScriptedServer) -> None:
    channel = EngineChannel(server.endpoint)
    channel.close()
    with pytest.raises(NoAnswerError, match="closed"):
        channel.tell(ECHO, 1)


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
    """Whoever leads when a shorter one comes is told."""
    server.answer = silent
    long = channel.submit(ECHO, 1, timeout_seconds=60)
    server.wait_for(1)
    with pytest.raises(NoAnswerError, match=r"no answer to 'echo' from .* within 0\.05 s"):
        channel.call(ECHO, 2, timeout_seconds=0.05)
    shorter = channel.submit(ECHO, 3, timeout_seconds=0.05)
    with pytest.raises(NoAnswerError):
        shorter.result(10)
    assert not long.done()


def test_a_caller_that_leads_ends_the_requests_of_others(server: ScriptedServer, channel: EngineChannel) -> None:
    server.answer = silent
    with ThreadPoolExecutor(1) as pool:
        caller = pool.submit(channel.call, ECHO, 1, timeout_seconds=60)
        server.wait_for(1)
        other = channel.submit(ECHO, 2, timeout_seconds=0.05)
        with pytest.raises(NoAnswerError):
            other.result(10)
        assert not caller.done()
        channel.close()
        with pytest.raises(NoAnswerError, match="was closed before 'echo' was answered"):
            caller.result(10)


def test_who_is_left_behind_is_served(server: ScriptedServer, channel: EngineChannel) -> None:
    """The leader goes when it has its answer; the others' come later."""
    server.answer = silent
    with ThreadPoolExecutor(4) as pool:
        leader = pool.submit(channel.call, ECHO, 0)
        server.wait_for(1)
        others = [pool.submit(channel.call, ECHO, number) for number in (1, 2, 3)]
        server.wait_for(4)
        first, *rest = server.requests
        server.answer = lambda request: [first]
        poke = channel.submit(ECHO, 9)
        assert leader.result(10) == 0
        server.answer = lambda request: [*rest, request]
        assert channel.call(ECHO, 10) == 10
        assert [each.result(10) for each in others] == [1, 2, 3]
        assert not poke.done()


def test_an_answer_that_another_thread_took_in_wakes_the_leader(server: ScriptedServer, channel: EngineChannel) -> None:
    """Sending takes in what is there, and ZMQ's descriptor does not tell the leader of it any more."""
    server.answer = echo
    stop = threading.Event()

    def send() -> None:
        while not stop.is_set():
            wait([channel.submit(ECHO, number) for number in range(20)], 20)

    with ThreadPoolExecutor(2) as pool:
        sending = pool.submit(send)
        try:
            for number in range(1500):
                assert channel.call(ECHO, number, timeout_seconds=20) == number
        finally:
            stop.set()
        sending.result(30)


def test_a_leader_whose_descriptor_stays_silent_is_told(server: ScriptedServer, channel: EngineChannel) -> None:
    server.answer = silent
    channel._poller.unregister(channel._exchange.descriptor)  # as after another thread has taken note of the news
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(channel.call, ECHO, 1, timeout_seconds=60)
        server.wait_for(1)
        wait([leader], 0.05)  # it waits for its descriptors
        answered = server.requests[0]
        server.answer = lambda request: [answered]
        end = time.monotonic() + 10
        while not leader.done() and time.monotonic() < end:
            channel.submit(ECHO, 2, timeout_seconds=120)
            wait([leader], 0.05)
        assert leader.done()
        assert leader.result() == 1


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


def test_a_callback_may_call_and_close(server: ScriptedServer, channel: EngineChannel) -> None:
    server.answer = silent
    seen: list[object] = []
    over = threading.Event()

    def first(future: Future[int]) -> None:
        seen.append(channel.call(ECHO, 2))
        channel.submit(ECHO, 3).add_done_callback(second)

    def second(future: Future[int]) -> None:
        seen.append(future.result())
        channel.close()
        over.set()

    channel.submit(ECHO, 1).add_done_callback(first)
    server.wait_for(1)
    held = server.requests[0]
    server.answer = later(held)
    channel.submit(ECHO, 5)
    assert over.wait(10)
    assert seen == [2, 3]
    channel.close()


def test_who_leads_goes_on_after_a_call_of_a_callback(server: ScriptedServer, channel: EngineChannel) -> None:
    """Or two threads would read the socket."""
    server.answer = silent
    never = channel.submit(ECHO, 0, timeout_seconds=60)
    told = threading.Event()

    def ask(future: Future[int]) -> None:
        if channel.call(ECHO, 2) == 2:
            told.set()

    channel.submit(ECHO, 1).add_done_callback(ask)
    server.wait_for(2)
    first = server.requests[1]
    server.answer = later(first)
    channel.submit(ECHO, 5)
    assert told.wait(10)
    wait([never], 0.05)  # the leader waits again
    server.answer = silent
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(channel.call, ECHO, 3)
        server.wait_for(5)
        wait([other], 0.05)  # until it waits, too
        held = server.requests[4]
        server.answer = lambda request: [held, request]
        assert channel.submit(ECHO, 4).result(10) == 4
        assert other.result(10) == 3


def test_a_callback_on_a_calling_thread_may_close(server: ScriptedServer, channel: EngineChannel) -> None:
    held = Held(server)
    with ThreadPoolExecutor(1) as pool:
        caller = pool.submit(channel.call, ECHO, 1, timeout_seconds=60)
        server.wait_for(1)
        future = channel.submit(ECHO, 2)
        server.wait_for(2)
        future.add_done_callback(lambda _: channel.close())
        held.release()
        server.requests.pop(0)  # the caller's own is never answered
        held.release()
        channel.submit(ECHO, 3)
        with pytest.raises(NoAnswerError, match="was closed"):
            caller.result(10)
    assert future.result() == 2


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


def test_an_answer_that_nobody_asked_for(server: ScriptedServer, channel: EngineChannel) -> None:
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


def test_nobody_there() -> None:
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


def test_a_forked_process_is_told(server: ScriptedServer, channel: EngineChannel) -> None:
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


def test_a_request_that_is_not_taken_wakes_the_leader(
    server: ScriptedServer, channel: EngineChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZMQ takes note of news before it finds that the socket is full."""
    server.answer = silent
    channel._poller.unregister(channel._exchange.descriptor)  # as after another thread has taken note of the news
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(channel.call, ECHO, 1, timeout_seconds=60)
        server.wait_for(1)
        wait([leader], 0.05)  # it waits for its descriptors
        answered = server.requests[0]
        server.answer = lambda request: [answered]
        channel.submit(ECHO, 2, timeout_seconds=120)
        server.wait_for(2)
        wait([leader], 0.05)  # until the answer is there

        def full(*arguments: object) -> bytes:
            raise NoAnswerError("injected")

        monkeypatch.setattr(channel._exchange, "send", full)
        with pytest.raises(NoAnswerError, match="injected"):
            channel.submit(ECHO, 3)
        assert leader.result(10) == 1


def test_an_interrupt_in_a_callback_keeps_nobody_waiting() -> None:
    """As by Ctrl-C on the main thread, which took in the answers of others as well."""

    def interrupt(future: Future[int]) -> None:
        raise KeyboardInterrupt

    futures: list[Future[int]] = [Future() for _ in range(3)]
    futures[1].add_done_callback(interrupt)
    with pytest.raises(KeyboardInterrupt):
        _complete([Outcome(future, number, None) for number, future in enumerate(futures)])
    assert [future.result(0) for future in futures] == [0, 1, 2]


def test_a_process_that_was_forked_in_the_middle_of_a_request(server: ScriptedServer, channel: EngineChannel) -> None:
    with channel._lock:
        child = os.fork()
        if not child:
            signal.alarm(10)  # where the child waits for a lock that nobody gives back
            try:
                channel.submit(ops.NOOP)
            except LMCacheError as error:
                os._exit(0 if "was made in another process" in str(error) else 1)
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
