"""Whom an id belongs to, and how long what binds it is kept."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from lmcache_coordinator.registry import ABSENT_SECONDS, SECRETS, InstanceTakenError, Registration, Registry
from lmcache_coordinator.states.sqlite import SqliteState
from lmcache_devkit import FakeClock
from lmcache_fleet.messages import PROOF_PATH, proof_of
from lmcache_fleet.state import StateUnavailableError

TIMEOUT = 30.0
OLD, NEW = (bytes([number]) * 32 for number in (1, 2))
SAYS = Registration(ip="127.0.0.1", http_port=1)


class State(SqliteState):
    is_away = False

    def read(self, prefix: str) -> Any:
        if self.is_away:
            raise StateUnavailableError("away")
        return super().read(prefix)

    def secrets(self) -> set[str]:
        return {key.removeprefix(SECRETS) for key in super().read(SECRETS).entries}


@pytest.fixture
def state() -> Iterator[State]:
    made = State(":memory:")
    yield made
    made.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def registry(state: State, clock: FakeClock) -> Registry:
    return make(state, clock)


def make(state: State, clock: FakeClock) -> Registry:
    return Registry(state, clock, TIMEOUT, lambda *_: None, lambda _: None)


@pytest.fixture
def admin() -> Iterator[Callable[[bytes], Registration]]:
    """Where a server that has the secret answers."""
    servers = []

    def start(secret: bytes) -> Registration:
        class Admin(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                proof = proof_of(secret, self.path.removeprefix(PROOF_PATH))
                self.wfile.write(json.dumps({"proof": proof}).encode())

            def log_message(self, *_: Any) -> None: ...

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Admin))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return Registration(ip="127.0.0.1", http_port=servers[-1].server_port)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_servers_that_leave_leave_nothing_in_the_state(registry: Registry, state: State) -> None:
    for number in range(20):
        _, secret = registry.register(f"s{number}", SAYS, None, True)
        assert secret is not None
        registry.leave(f"s{number}", secret)
    assert state.secrets() == set()
    registry.register("s1", SAYS, None, True)  # anybody may have it now


def test_one_that_leaves_late_does_not_take_the_secret_of_its_next_start(state: State, clock: FakeClock) -> None:
    """At another coordinator, which has not heard of that one yet."""
    first, second = make(state, clock), make(state, clock)
    for each in (first, second):
        each.register("s", SAYS, OLD, True)
    first.leave("s", OLD)
    first.register("s", SAYS, NEW, True)
    second.leave("s", OLD)
    assert state.secrets() == {"s"}


def test_one_that_leaves_one_coordinator_is_bound_at_the_other_one_until_it_leaves_that(
    state: State, clock: FakeClock
) -> None:
    first, second = make(state, clock), make(state, clock)
    for each in (first, second):
        each.register("s", SAYS, OLD, True)
    first.leave("s", OLD)
    second.forget_absent(True)
    for wants_secret in (True, False):
        with pytest.raises(InstanceTakenError):
            second.register("s", SAYS, None, wants_secret)
    second.leave("s", OLD)
    second.register("s", SAYS, None, False)


def test_a_server_leaves_also_while_the_state_is_away(registry: Registry, state: State) -> None:
    registry.register("s", SAYS, OLD, True)
    state.is_away = True
    registry.leave("s", OLD)
    assert registry.find("s") is None


def test_secrets_of_servers_that_do_not_come_back_are_removed_by_the_leader(state: State, clock: FakeClock) -> None:
    registry, other = make(state, clock), make(state, clock)
    for name in ("dead", "lives", "back"):
        registry.register(name, SAYS, OLD, True)
    clock.advance(TIMEOUT + 1)
    registry.heard("lives", OLD)
    assert sorted(registry.drop_silent()) == ["back", "dead"]
    for each in (registry, other):
        each.forget_absent(True)
    clock.advance(ABSENT_SECONDS / 2)
    registry.register("back", SAYS, OLD, True)
    other.register("lives", SAYS, OLD, True)
    registry.forget_absent(True)
    clock.advance(ABSENT_SECONDS / 2)
    registry.forget_absent(False)
    assert state.secrets() == {"dead", "lives", "back"}, "another coordinator leads"
    registry.forget_absent(True)
    assert state.secrets() == {"lives", "back"}
    other.forget_absent(False)
    other.admit("dead", None)  # it knows that, too


def test_a_live_id_without_a_secret_is_not_bound_by_another_server(
    registry: Registry, clock: FakeClock, admin: Callable[[bytes], Registration]
) -> None:
    registry.register("stock", SAYS, None, False)
    with pytest.raises(InstanceTakenError, match="live"):
        registry.register("stock", Registration(ip="10.0.0.9", http_port=1), NEW, True)
    registry.heard("stock", None)  # it is not refused
    assert registry.register("stock", SAYS, None, False)[0], "it may start again"
    elsewhere = admin(NEW)
    registry.register("stock", elsewhere, None, False)
    with pytest.raises(InstanceTakenError):
        registry.register("stock", elsewhere, NEW, True)  # nor where it says first that it has moved
    clock.advance(TIMEOUT + 1)
    assert registry.register("stock", elsewhere, NEW, True) == (True, NEW)


def test_a_live_id_without_a_secret_is_bound_by_the_server_at_its_address(
    registry: Registry, admin: Callable[[bytes], Registration]
) -> None:
    """A server that starts again with another version, or with flags that it did not have."""
    at = admin(NEW)
    registry.register("stock", at, None, False)
    with pytest.raises(InstanceTakenError):
        registry.register("stock", at, OLD, True)
    assert registry.register("stock", at, NEW, True) == (True, NEW)
