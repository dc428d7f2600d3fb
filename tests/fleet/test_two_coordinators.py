"""Two coordinators on one state: one of them evicts, both answer, and what was acknowledged stays, whatever fails."""

from __future__ import annotations

import json
import math
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from lmcache_coordinator.leadership import Leadership
from lmcache_devkit.offer_under_test import OpenableOffer, installed_offer
from lmcache_fleet.messages import DeleteKeys, decode_reply
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess
from plugins.coordinator.tests.test_eviction import Site
from plugins.coordinator.tests.test_routes import Poster, stored
from tests.fleet.etcd_server import EtcdServer, etcd_server
from tests.fleet.history import Operation, faults
from tests.remote.redis_servers import RedisServer, redis_server, redis_with_sentinels, wait_for

LEADER_SECONDS = 15.0
ANSWER_SECONDS = 10.5
SALTS = ("a", "b")


class Pair:
    """Two coordinators, and what the clients were answered."""

    def __init__(
        self,
        folder: Path,
        state: str | tuple[str, str],
        stack: ExitStack,
        *flags: str,
        pause_seconds: float = 0.1,
        environments: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {}),
    ) -> None:
        """`state`, and `environments`: of each.  `pause_seconds`: at most, between two requests of a client of `traffic`."""
        self.coordinators = []
        states = (state, state) if isinstance(state, str) else state
        for name, own, environment in zip(("one", "two"), states, environments, strict=True):
            (folder / name).mkdir(parents=True)
            process = CoordinatorProcess(folder / name, "--state", own, *flags, environment=environment)
            self.coordinators.append(stack.enter_context(process))
        self.operations: dict[str, list[Operation]] = {salt: [] for salt in SALTS}
        self.refused = 0
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._written = 0
        self._pause = pause_seconds

    def leaders(self) -> list[CoordinatorProcess]:
        return [each for each in self.coordinators if says_leader(each)]

    def wait_for_one_leader(self) -> CoordinatorProcess:
        wait_for(lambda: len(self.leaders()) == 1, f"no leader in {LEADER_SECONDS} s", LEADER_SECONDS)
        (leader,) = self.leaders()
        return leader

    def other(self, coordinator: CoordinatorProcess) -> CoordinatorProcess:
        return next(each for each in self.coordinators if each is not coordinator)

    def write(self, coordinator: CoordinatorProcess, salt: str) -> int:
        """A value that was never written before."""
        with self._lock:
            self._written += 1
            value = self._written
        began = time.monotonic()
        status = self._ask(coordinator, "PUT", f"/l2/quota/{salt}", {"limit_gb": value})[0]
        ended = time.monotonic() if status == 200 else math.inf
        with self._lock:
            self.operations[salt].append(Operation(True, value, began, ended))
            self.refused += status != 200
        return status

    def read(self, coordinator: CoordinatorProcess, salt: str) -> None:
        began = time.monotonic()
        status, body = self._ask(coordinator, "GET", f"/l2/status/{salt}")
        if status == 200:
            value = int(body["quota_limit_gb"]) if body["quota_exists"] else None
            with self._lock:
                self.operations[salt].append(Operation(False, value, began, time.monotonic()))

    def check(self) -> None:
        for salt, operations in self.operations.items():
            assert faults(operations) == [], f"quota of {salt}"

    def traffic(self, stack: ExitStack, seed: int) -> None:
        """Until the stack is left."""

        def run(number: int) -> None:
            chooser = random.Random(seed * 100 + number)
            while not self._stopping.wait(chooser.uniform(0, self._pause)):
                call = self.write if chooser.random() < 0.4 else self.read
                call(chooser.choice(self.coordinators), chooser.choice(SALTS))

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()

        def stop() -> None:
            self._stopping.set()
            for thread in threads:
                thread.join()

        stack.callback(stop)

    def _ask(
        self, coordinator: CoordinatorProcess, method: str, path: str, body: Any = None
    ) -> tuple[int, dict[str, Any]]:
        try:
            reply = coordinator.ask(method, path, body)
        except OSError:
            return 0, {}
        assert reply.status in (200, 503), reply
        if reply.status == 503:
            assert "--state" in reply.body["detail"], reply
        return reply.status, reply.body


def says_leader(coordinator: CoordinatorProcess) -> bool:
    try:
        return bool(coordinator.ask("GET", "/conditions").body["leader"])
    except OSError:
        return False


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    with etcd_server(tmp_path / "etcd") as server:
        yield server


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


def signal_to(coordinator: CoordinatorProcess, number: signal.Signals) -> None:
    assert coordinator.process is not None
    coordinator.process.send_signal(number)


def test_both_answer_one_evicts_and_another_takes_over(tmp_path: Path, etcd: EtcdServer) -> None:
    with ExitStack() as stack:
        pair = Pair(tmp_path, f"etcd:{etcd.url}", stack)
        first = pair.wait_for_one_leader()
        second = pair.other(first)
        # What one sets the other answers, at once.
        for salt, (setter, getter) in zip(SALTS, ((first, second), (second, first)), strict=True):
            assert setter.ask("PUT", f"/l2/quota/{salt}", {"limit_gb": 3}).status == 200
            assert getter.ask("GET", f"/l2/status/{salt}").body["quota_limit_gb"] == 3
            assert getter.ask("DELETE", f"/l2/quota/{salt}").status == 200
            assert setter.ask("DELETE", f"/l2/quota/{salt}").status == 404
        # An id that was bound at one is bound at the other, to the same secret.
        header = {"lmcache-instance-secret": "ab" * 32}
        said = {"instance_id": "s", "secret": True}
        assert first.ask("POST", "/instances", said, header).body["secret"] == "ab" * 32
        assert second.ask("POST", "/instances", said, header).status == 200
        assert second.ask("POST", "/instances", said, {"lmcache-instance-secret": "cd" * 32}).status == 409
        first.kill()
        wait_for(lambda: says_leader(second), "no other leader", LEADER_SECONDS)
        first.start()
        assert not says_leader(first)


@pytest.mark.parametrize("kind", ["sqlite", "etcd", "redis"])
def test_what_one_has_pinned_the_other_does_not_evict(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = str(tmp_path / "state.db")
    if kind != "sqlite":
        server = request.getfixturevalue(kind)
        address = server.url if kind == "etcd" else f"redis://127.0.0.1:{server.port}/0"
    monkeypatch.setattr(Leadership, "is_leader", True)
    offer = OpenableOffer(installed_offer("coordinator_state", kind), {"address": address})
    with closing(offer.open()) as own, closing(offer.open()) as others:
        other, leader = Site(state=others), Site("one", state=own)
        leader.quota(a=0)
        leader.store("one", "a", 0, 10)
        pinned = [number.to_bytes(32, "big") for number in range(3)]
        other.coordinator.pins.change("m", "a", pinned, 1)
        leader.interval()
        assert leader.obey("one") == 7
        other.coordinator.pins.change("m", "a", pinned, -1)
        leader.interval()
        assert leader.obey("one") == 3


@pytest.mark.slow
def test_a_leader_that_was_stopped_knows_that_it_leads_no_more(tmp_path: Path, etcd: EtcdServer) -> None:
    with ExitStack() as stack:
        pair = Pair(tmp_path, f"etcd:{etcd.url}", stack)
        first = pair.wait_for_one_leader()
        second = pair.other(first)
        signal_to(first, signal.SIGSTOP)
        try:
            wait_for(lambda: says_leader(second), "no other leader", LEADER_SECONDS)
        finally:
            signal_to(first, signal.SIGCONT)
        assert not says_leader(first), "its own clock says so, before it asked the state"
        assert says_leader(second)


@pytest.mark.slow
def test_an_old_leader_that_comes_back_deletes_nothing_that_it_had_planned(tmp_path: Path, etcd: EtcdServer) -> None:
    with ExitStack() as stack:
        flags = ("--eviction-check-interval", "0.2", "--instance-timeout", "600")
        pair = Pair(tmp_path, f"etcd:{etcd.url}", stack, *flags)
        first = pair.wait_for_one_leader()
        second = pair.other(first)
        assert first.ask("PUT", "/l2/quota/a", {"limit_gb": 0}).status == 200
        Poster(first, "one").send("redis", stored(0, 4), shared=True)
        planned = "objects_not_deleted"  # it waits for a server that asks
        wait_for(lambda: planned in json.dumps(first.ask("GET", "/conditions").body), "it plans nothing")
        signal_to(first, signal.SIGSTOP)
        try:
            wait_for(lambda: says_leader(second), "no other leader", LEADER_SECONDS)
            assert second.ask("PUT", "/l2/quota/a", {"limit_gb": 1}).status == 200
        finally:
            signal_to(first, signal.SIGCONT)
        for _ in range(20):
            reply = decode_reply(first.ask("POST", "/fleet/heartbeat/one").body)
            assert not [each for each in reply.commands if isinstance(each, DeleteKeys)]
            time.sleep(0.05)  # some of its intervals pass
        assert first.ask("GET", "/l2/status/a").body["usage_gb"] > 0


@pytest.mark.parametrize("kind", ["etcd", "redis"])
@pytest.mark.parametrize("fault", ["kill", pytest.param("freeze", marks=pytest.mark.slow)])
def test_a_state_that_does_not_answer_is_a_503_and_loses_nothing(
    tmp_path: Path, fault: str, kind: str, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue(kind)
    stop, go_on = (server.kill, server.start) if fault == "kill" else (server.freeze, server.thaw)
    state = f"etcd:{server.url}" if kind == "etcd" else f"redis://127.0.0.1:{server.port}/0"
    with ExitStack() as stack:
        pair = Pair(tmp_path, state, stack)
        one, two = pair.coordinators
        assert pair.write(one, "a") == 200
        stop()
        try:
            for method, path, body in (
                ("PUT", "/l2/quota/b", {"limit_gb": 1}),
                ("DELETE", "/l2/quota/a", None),
                ("GET", "/l2/status/a", None),
            ):
                began = time.monotonic()
                reply = two.ask(method, path, body)
                assert time.monotonic() - began < ANSWER_SECONDS
                assert reply.status == 503
                assert f"--state {kind}" in reply.body["detail"]
                assert "see whether" in reply.body["detail"]
            assert two.ask("GET", "/instances").status == 200, "what needs no state is answered"
            wait_for(
                lambda: "state_unavailable" in json.dumps(two.ask("GET", "/conditions").body),
                "no condition says so",
            )
        finally:
            go_on()
        wait_for(lambda: two.ask("GET", "/l2/status/a").status == 200, "it does not come back")
        pair.read(one, "a")
        pair.read(two, "a")
        pair.check()
        pair.wait_for_one_leader()


def disturb(pair: Pair, server: EtcdServer | RedisServer | None, chooser: random.Random) -> Callable[[], None]:
    """Does something bad; returns what ends it.  `server`: of the state; None: it is a file."""
    leader = (pair.leaders() or pair.coordinators)[0]
    victim = chooser.choice([leader, pair.other(leader)])

    def revive() -> None:
        victim.start()

    what = chooser.randrange(5 if server else 3)
    if server is None or what < 3:
        if what < 2:
            victim.kill()
            return revive
        signal_to(victim, signal.SIGSTOP)
        return lambda: signal_to(victim, signal.SIGCONT)
    if what == 3:
        server.kill()
        return server.start
    server.freeze()
    return server.thaw


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "etcd", "redis"])
def test_no_acknowledged_quota_is_lost_in_rounds_of_faults(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    server = None if kind == "sqlite" else request.getfixturevalue(kind)
    state = str(tmp_path / "state.db")
    if server is not None:
        state = f"etcd:{server.url}" if kind == "etcd" else f"redis://127.0.0.1:{server.port}/0"
    chooser = random.Random(19)
    with ExitStack() as stack:
        pair = Pair(tmp_path, state, stack)
        pair.wait_for_one_leader()
        with ExitStack() as running:
            pair.traffic(running, 19)
            for _ in range(12):
                undo = disturb(pair, server, chooser)
                time.sleep(chooser.uniform(0.5, 12))
                undo()
                pair.wait_for_one_leader()
        for salt in SALTS:
            for coordinator in pair.coordinators:
                pair.read(coordinator, salt)
        pair.check()
        reads = [each for group in pair.operations.values() for each in group if not each.writes]
        assert len(reads) > 200


@pytest.mark.slow
def test_what_a_fail_over_of_redis_may_lose(tmp_path: Path) -> None:
    """Writes that the master acknowledged and did not send to its replica are gone: the checker sees it, the page says it.
    Everything that both had is there, and there is one leader again."""
    with ExitStack() as stack:
        redis = stack.enter_context(redis_with_sentinels(tmp_path / "redis"))
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in redis.sentinels)
        pair = Pair(tmp_path, f"redis:sentinel://{hosts}/kv", stack)
        pair.wait_for_one_leader()
        one, two = pair.coordinators
        assert pair.write(one, "a") == 200
        master = next(each for each in redis.servers if each.port == redis.master_port())
        replica = next(each for each in redis.servers if each is not master)
        with master.client() as client:
            wait_for(lambda: client.wait(1, 1000) == 1, "the replica does not follow")
            replica.freeze()
            client.client_kill_filter(_type="replica")  # what comes now is not in its buffer either
            assert pair.write(one, "b") == 200
            master.kill()
        replica.thaw()
        wait_for(lambda: two.ask("GET", "/l2/status/a").status == 200, "no other master", 60)
        for salt in SALTS:
            pair.read(two, salt)
        assert faults(pair.operations["a"]) == []
        assert faults(pair.operations["b"]) != [], "an acknowledged write is lost"
        pair.wait_for_one_leader()
