"""One of the waiting threads reads the socket for all, whichever it is, and whatever callbacks do meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from libs.client.tests.scripted_server import ECHO, Frames, ScriptedServer, echo, silent
from lmcache_client.channel import EngineChannel, _complete
from lmcache_client.errors import NoAnswerError
from lmcache_client.exchange import Outcome


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


def unaware_leader(server: ScriptedServer, channel: EngineChannel, pool: ThreadPoolExecutor) -> Future[int]:
    """Waits for its descriptors, which stay silent: as after another thread has consumed the wake-up.  The server answers
    its request with the next one that comes."""
    server.answer = silent
    channel._poller.unregister(channel._exchange.descriptor)
    leader = pool.submit(channel.call, ECHO, 1, timeout_seconds=60)
    server.wait_for(1)
    wait([leader], 0.05)
    answered = server.requests[0]
    server.answer = lambda request: [answered]
    return leader


def test_a_leader_whose_descriptor_stays_silent_is_woken(server: ScriptedServer, channel: EngineChannel) -> None:
    with ThreadPoolExecutor(1) as pool:
        leader = unaware_leader(server, channel, pool)
        end = time.monotonic() + 10
        while not leader.done() and time.monotonic() < end:
            channel.submit(ECHO, 2, timeout_seconds=120)
            wait([leader], 0.05)
        assert leader.done()
        assert leader.result() == 1


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
    called = threading.Event()

    def ask(future: Future[int]) -> None:
        if channel.call(ECHO, 2) == 2:
            called.set()

    channel.submit(ECHO, 1).add_done_callback(ask)
    server.wait_for(2)
    first = server.requests[1]
    server.answer = later(first)
    channel.submit(ECHO, 5)
    assert called.wait(10)
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


def test_a_request_that_is_not_taken_wakes_the_leader(
    server: ScriptedServer, channel: EngineChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZMQ consumes the wake-up before it finds that the socket is full."""
    with ThreadPoolExecutor(1) as pool:
        leader = unaware_leader(server, channel, pool)
        channel.submit(ECHO, 2, timeout_seconds=120)
        server.wait_for(2)
        wait([leader], 0.05)  # until the answer is there

        def full(*arguments: object) -> bytes:
            raise NoAnswerError("injected")

        monkeypatch.setattr(channel._exchange, "send", full)
        with pytest.raises(NoAnswerError, match="injected"):
            channel.submit(ECHO, 3)
        assert leader.result(10) == 1


def test_an_interrupt_in_a_callback_keeps_no_thread_waiting() -> None:
    """As by Ctrl-C on the main thread, which took in the answers of others as well."""

    def interrupt(future: Future[int]) -> None:
        raise KeyboardInterrupt

    futures: list[Future[int]] = [Future() for _ in range(3)]
    futures[1].add_done_callback(interrupt)
    with pytest.raises(KeyboardInterrupt):
        _complete([Outcome(future, number, None) for number, future in enumerate(futures)])
    assert [future.result(0) for future in futures] == [0, 1, 2]
