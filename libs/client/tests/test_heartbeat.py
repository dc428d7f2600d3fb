from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from libs.client.tests.scripted_server import Frames, ScriptedServer
from lmcache_client.channel import EngineChannel
from lmcache_client.heartbeat import Heartbeat, ServerChange
from lmcache_client.messages import ServerHello

PING, HELLO = b"\x16", b"\xa5hello"
BEAT = 0.05
LOST, BACK, RESTARTED = ServerChange.LOST, ServerChange.BACK, ServerChange.RESTARTED


def hello(boot: str) -> ServerHello:
    return ServerHello(boot, "instance", "0.1", 256)


class Node:
    """A server with a boot id, which can die, and which may not know a worker or what a hello is."""

    def __init__(self) -> None:
        self.boot: str | None = "first"
        self.knows = True
        self.pings: list[object] = []
        self._server = ScriptedServer()
        self._server.answer = self._answer
        self.endpoint = self._server.endpoint

    def _answer(self, request: Frames) -> list[Frames]:
        if request[2] == PING:
            self.pings.append(msgspec.msgpack.decode(request[3]))
            known, self.knows = self.knows, True  # answered once
            return [[*request[:3], msgspec.msgpack.encode(known)]]
        return [[*request[:3], msgspec.msgpack.encode(hello(self.boot))]] if self.boot else []

    @property
    def hellos(self) -> int:
        return sum(request[2] == HELLO for request in self._server.requests)

    def die(self) -> None:
        self._server.close()

    def come_back(self, boot: str | None) -> None:
        self.boot = boot
        self._server = ScriptedServer(self.endpoint)
        self._server.answer = self._answer

    def wait_for_pings(self, more: int) -> None:
        wanted = len(self.pings) + more
        wait_until(lambda: len(self.pings) >= wanted)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


class Watched:
    """A heartbeat, and what it reported."""

    def __init__(self, node: Node, **options: object) -> None:
        self.changes: queue.Queue[ServerChange] = queue.Queue()
        self.fails = False
        self.channel = EngineChannel(node.endpoint)
        options = {"interval_seconds": BEAT, **options}
        self.heart = Heartbeat(self.channel, self._note, **options)  # type: ignore[arg-type]
        self.heart.start()

    def _note(self, change: ServerChange) -> None:
        assert threading.current_thread().name == "lmcache-heartbeat"
        self.changes.put(change)
        if self.fails:
            raise RuntimeError("injected")

    def next(self) -> ServerChange:
        return self.changes.get(timeout=10)


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.die()


Watch = Callable[..., Watched]


@pytest.fixture
def watch(node: Node) -> Iterator[Watch]:
    made: list[Watched] = []

    def make(**options: object) -> Watched:
        made.append(Watched(node, **options))
        return made[-1]

    yield make
    for each in made:
        each.heart.stop()
        each.channel.close()


def test_a_server_that_is_well_is_pinged_at_once_and_then_every_interval(node: Node, watch: Watch) -> None:
    watched = watch(instance_id=7)
    node.wait_for_pings(4)
    assert set(node.pings) == {7}
    assert watched.heart.healthy
    assert watched.changes.empty()


def test_a_server_that_dies_and_is_found_again(node: Node, watch: Watch) -> None:
    watched = watch()
    node.wait_for_pings(2)
    node.die()
    assert watched.next() is LOST
    assert not watched.heart.healthy
    node.come_back("first")
    assert watched.next() is BACK
    wait_until(lambda: watched.heart.healthy)
    assert watched.changes.empty(), "reported once"


def test_a_server_that_is_another_one_when_it_is_back(node: Node, watch: Watch) -> None:
    watched = watch()
    node.wait_for_pings(2)
    node.die()
    assert watched.next() is LOST
    node.come_back("second")
    assert watched.next() is RESTARTED
    wait_until(lambda: watched.heart.healthy)


def test_a_restart_that_no_ping_was_lost_in(node: Node, watch: Watch) -> None:
    watched = watch()
    node.wait_for_pings(2)
    node.boot = "second"
    assert watched.next() is RESTARTED


def test_a_restart_before_the_first_beat(node: Node, watch: Watch) -> None:
    assert watch(hello=hello("zeroth")).next() is RESTARTED


def test_the_server_of_the_registration_is_not_a_restart(node: Node, watch: Watch) -> None:
    watched = watch(hello=hello("first"))
    node.wait_for_pings(3)
    assert watched.changes.empty()


def test_a_worker_that_is_unknown(node: Node, watch: Watch) -> None:
    watched = watch(instance_id=7)
    node.wait_for_pings(2)
    node.knows = False
    assert watched.next() is RESTARTED
    wait_until(lambda: watched.heart.healthy)
    assert watched.changes.empty()


def test_a_change_that_could_not_be_handled_is_reported_again(node: Node, watch: Watch) -> None:
    watched = watch(instance_id=7)
    node.wait_for_pings(2)
    watched.fails = True
    node.knows = False
    assert [watched.next() for _ in range(3)] == [RESTARTED] * 3
    assert not watched.heart.healthy
    watched.fails = False
    wait_until(lambda: watched.heart.healthy)


def test_a_restart_that_is_owed_outlives_a_loss(node: Node, watch: Watch) -> None:
    watched = watch(instance_id=7)
    node.wait_for_pings(2)
    watched.fails = True
    node.knows = False
    assert watched.next() is RESTARTED
    node.die()
    watched.fails = False
    node.come_back("first")
    wait_until(lambda: watched.heart.healthy)
    assert watched.changes.queue[-1] is RESTARTED


def test_a_server_that_knows_no_hello_is_asked_once(node: Node, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_client.heartbeat.HELLO_SECONDS", 0.05)
    node.boot = None
    watched = watch()
    node.wait_for_pings(4)
    assert node.hellos == 1
    node.die()
    assert watched.next() is LOST
    node.come_back("second")
    assert watched.next() is BACK
    node.wait_for_pings(2)
    assert node.hellos > 1, "the server that came back may know it"


def test_a_hello_that_gets_lost_hides_no_restart(node: Node, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has answered one knows the question: one that is late, or dies in between, may be asked again."""
    monkeypatch.setattr("lmcache_client.heartbeat.HELLO_SECONDS", 0.05)
    watched = watch()
    node.wait_for_pings(2)
    node.boot = None
    node.wait_for_pings(2)
    assert watched.changes.empty()
    node.boot = "second"
    assert watched.next() is RESTARTED


def test_a_closed_channel_is_a_lost_server(node: Node, watch: Watch) -> None:
    watched = watch()
    node.wait_for_pings(1)
    watched.channel.close()
    assert watched.next() is LOST


def test_stop_does_not_wait_for_an_answer(node: Node, watch: Watch) -> None:
    node.die()
    watched = watch(interval_seconds=600.0)
    watched.heart.stop()
    watched.heart.stop()
    assert not any(thread.name == "lmcache-heartbeat" for thread in threading.enumerate())
    assert watched.changes.empty()


def test_a_callback_may_stop_it(node: Node) -> None:
    hearts: list[Heartbeat] = []
    with EngineChannel(node.endpoint) as channel:
        heart = Heartbeat(channel, lambda _: hearts[0].stop(), interval_seconds=BEAT, hello=hello("zeroth"))
        hearts.append(heart)
        heart.start()
        wait_until(lambda: not any(thread.name == "lmcache-heartbeat" for thread in threading.enumerate()))
        heart.stop()


def test_stop_without_start(node: Node) -> None:
    with EngineChannel(node.endpoint) as channel:
        Heartbeat(channel, lambda _: None).stop()
    assert node.pings == []
