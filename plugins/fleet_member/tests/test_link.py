"""What a member does for one coordinator, and says of it, without a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from lmcache_core import HashChain, KeySpace, ObjectKey, Outcome, ServerInfo, ServiceContext
from lmcache_fleet.http_connection import Answer, UnreachableError
from lmcache_fleet.messages import DeleteKeys, Reply, decode_heartbeat, encode
from lmcache_fleet_member.link import Link
from lmcache_fleet_member.member import Member
from lmcache_fleet_member.settings import MemberSettings

SPACE = KeySpace("m", 0, 0, "", 16, HashChain.BLAKE3, bytes(16))
COMMAND = DeleteKeys("redis", SPACE.tail, bytes(64))


class Coordinator:
    """The connection to one that gives commands."""

    def __init__(self) -> None:
        self.commands: list[DeleteKeys] = []
        self.heard: list[tuple[str, ...]] = []
        self.metadata: dict[str, Any] = {}
        """What a module of the server says for its registration."""
        self.registered: list[Mapping[str, Any]] = []
        self.is_down = False
        self.meanwhile: Callable[[], None] = lambda: None
        """Called while a heartbeat is under way."""

    def ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        if self.is_down:
            raise UnreachableError("no answer")
        if path.startswith("/fleet/heartbeat/"):
            self.heard.append(decode_heartbeat(body or b"").not_deleted)
            self.meanwhile()
        if path == "/instances":
            self.registered.append(msgspec.json.decode(body or b"")["metadata"])
        commands, self.commands = tuple(self.commands), []
        return Answer(200, encode(Reply(commands=commands)))

    def close(self) -> None: ...


class Adapter:
    name = "redis"

    def __init__(self) -> None:
        self.answer: Callable[[Sequence[ObjectKey]], Sequence[Outcome] | None] = lambda keys: [Outcome.DONE] * len(keys)
        self.asked: list[Sequence[ObjectKey]] = []

    def delete(self, keys: Sequence[ObjectKey], is_over: Callable[[], bool]) -> Sequence[Outcome] | None:
        self.asked.append(keys)
        return self.answer(keys)


@pytest.fixture
def adapter() -> Adapter:
    return Adapter()


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def link(adapter: Adapter, coordinator: Coordinator) -> Link:
    adapters = SimpleNamespace(clients=lambda: [adapter])
    control = SimpleNamespace(adapters=adapters, freeze=SimpleNamespace(begin=lambda *_: None, end=lambda _: None))
    server = SimpleNamespace(
        status=lambda: {"modules": {"quiet": {}, "handoffs": {"member_metadata": coordinator.metadata}}}
    )
    context = cast(ServiceContext, SimpleNamespace(feeds=[], value_at=lambda _: None, control=control, server=server))
    settings: dict[str, Any] = {"urls": ["http://127.0.0.1:9"], "advertise_ip": "127.0.0.1", "heartbeat_interval": 3600}
    member = Member(MemberSettings.model_validate(settings), context)
    member.start(ServerInfo("server-1", "boot", "tcp://127.0.0.1:1", None, 16, "0"))
    ((link,), _) = member.look()
    link._http = coordinator  # type: ignore[assignment]
    link.step()
    assert coordinator.heard.pop() == ()
    return link


def obey(link: Link, coordinator: Coordinator, *commands: DeleteKeys) -> None:
    coordinator.commands += commands
    link._heard_at = float("-inf")
    link.step()
    link.stop()  # the thread of deletes ends behind what was asked so far
    link.run_deletes()


def test_what_modules_say_is_registered_and_again_when_it_changes(link: Link, coordinator: Coordinator) -> None:
    own = {"chunk_tokens": 16, "version": "0"}
    assert coordinator.registered == [own]
    for metadata in ({}, {"decode_urls": ["http://d:1"]}, {"decode_urls": ["http://d:1"]}, {}):
        coordinator.metadata = metadata
        obey(link, coordinator)
    assert coordinator.registered == [own, {**own, "decode_urls": ["http://d:1"]}, own]


@pytest.mark.parametrize(
    "metadata",
    ["text", 5, ["decode_urls"], {"version": ["9"]}, {"decode_urls": "http://d:1"}, {"decode_urls": [object()]}],
)
def test_what_a_module_says_wrongly_is_left_out(metadata: Any, link: Link, coordinator: Coordinator) -> None:
    coordinator.metadata = metadata
    link._registered_metadata = {}
    obey(link, coordinator)
    assert coordinator.registered[-1] == {"chunk_tokens": 16, "version": "0"}
    assert link.condition() is None


def test_what_was_deleted_needs_no_word(link: Link, coordinator: Coordinator, adapter: Adapter) -> None:
    adapter.answer = lambda keys: [Outcome.DONE, Outcome.MISSING]
    obey(link, coordinator, COMMAND)
    assert [len(keys) for keys in adapter.asked] == [2]
    coordinator.heard.clear()
    link.step()
    assert coordinator.heard == []


@pytest.mark.parametrize("answer", [(Outcome.DONE, Outcome.FAILED), (Outcome.REJECTED, Outcome.DONE), None])
def test_what_was_not_deleted_is_said_at_once_and_once(
    answer: Sequence[Outcome] | None, link: Link, coordinator: Coordinator, adapter: Adapter
) -> None:
    adapter.answer = lambda keys: answer
    obey(link, coordinator, COMMAND)
    coordinator.heard.clear()
    coordinator.is_down = True
    link.step()
    coordinator.is_down = False
    link.step()
    assert coordinator.heard == [("redis",)], "before the next heartbeat is due, and also when a message was lost"
    link.step()
    assert coordinator.heard == [("redis",)]


def test_what_fails_while_a_heartbeat_is_under_way_is_said_in_the_next_one(
    link: Link, coordinator: Coordinator, adapter: Adapter
) -> None:
    adapter.answer = lambda keys: None
    obey(link, coordinator, COMMAND)
    coordinator.heard.clear()

    def fail_again() -> None:
        coordinator.meanwhile = lambda: None
        link._deletes.put(COMMAND)
        link.stop()
        link.run_deletes()

    coordinator.meanwhile = fail_again
    for _ in range(3):
        link.step()
    assert coordinator.heard == [("redis",), ("redis",)]


def test_a_source_that_this_server_does_not_have_is_not_deleted_from(link: Link, coordinator: Coordinator) -> None:
    obey(link, coordinator, DeleteKeys("gone", SPACE.tail, bytes(32)))
    link.step()
    assert coordinator.heard[-1] == ("gone",)


def test_a_coordinator_that_is_back_is_found_within_a_second(link: Link, coordinator: Coordinator) -> None:
    coordinator.is_down = True
    link._heard_at = float("-inf")
    pauses = [link.step() for _ in range(50)]
    assert max(pauses) <= 1.0
    assert min(pauses[3:]) >= 0.5, "members do not crowd"
