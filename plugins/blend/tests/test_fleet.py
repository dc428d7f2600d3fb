"""What the coordinator says of a prompt: believed as far as it is true, and waited for no longer than is allowed."""

from __future__ import annotations

import base64
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec
import pytest

from lmcache_blend import fleet as module
from lmcache_blend.fleet import ANSWER_SECONDS, FAILURES_MAX, FleetMatches
from lmcache_core import HashChain, KeySpace, pack_kv_rank
from lmcache_fleet.families import Family, chunk_hashes
from lmcache_fleet.http_connection import Answer, HttpConnection, UnreachableError

SIZE = 4
SPACE = KeySpace("model", pack_kv_rank(1, 0), 0, "salt", SIZE, HashChain.BLAKE3, bytes(16))
STORED = list(range(100, 100 + 3 * SIZE))
HASHES = chunk_hashes(Family.of(SPACE), STORED)
FIRST, SECOND, THIRD = (HASHES[at : at + 32] for at in (0, 32, 64))
PROMPT = [1, *STORED]


def row(chunk_hash: bytes, old: int, now: int, parent: bytes) -> dict[str, Any]:
    return {"chunk_hash": chunk_hash.hex(), "old_st": old, "cur_st": now, "parent_hash": parent.hex()}


RIGHT = [row(FIRST, 0, 1, b""), row(SECOND, SIZE, 1 + SIZE, FIRST), row(THIRD, 2 * SIZE, 1 + 2 * SIZE, SECOND)]


class Coordinator:
    """A connection to one."""

    def __init__(self) -> None:
        self.answer: Callable[[], Any] = lambda: {"matches": RIGHT}
        self.asked: list[dict[str, Any]] = []

    def ask(self, method: str, path: str, body: bytes, headers: Any) -> Answer:
        self.asked.append(msgspec.json.decode(body))
        return Answer(200, msgspec.json.encode(self.answer()))

    def close(self) -> None: ...


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def fleet(coordinator: Coordinator) -> Iterator[FleetMatches]:
    fleet = FleetMatches([[cast(HttpConnection, coordinator)]])
    yield fleet
    fleet.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine may be busy."""
    monkeypatch.setattr(module, "ANSWER_SECONDS", 10.0)


def starts(fleet: FleetMatches) -> list[int]:
    asked = fleet.ask(SPACE, array("I", PROMPT))
    assert asked is not None
    return [each.match.start for each in asked.found()]


@pytest.mark.usefixtures("patient")
def test_what_is_true_is_found(fleet: FleetMatches, coordinator: Coordinator) -> None:
    asked = fleet.ask(SPACE, array("I", PROMPT))
    assert asked is not None
    found = asked.found()
    assert [(each.match.start, each.match.hash, each.match.place, each.parent) for each in found] == [
        (1, FIRST, 0, b""),
        (1 + SIZE, SECOND, 1, FIRST),
        (1 + 2 * SIZE, THIRD, 2, SECOND),
    ]
    (question,) = coordinator.asked
    assert array("I", base64.b64decode(question.pop("tokens_b64"))).tolist() == PROMPT
    assert question == {"model_name": "model", "world_size": 1, "cache_salt": "salt", "layout": "00" * 16}


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    "wrong",
    [
        row(FIRST, 0, 2, b""),
        row(FIRST, 0, -SIZE, b""),
        row(FIRST, 0, 10**9, b""),
        row(FIRST, SIZE, 1, b""),
        row(SECOND, 0, 1 + SIZE, FIRST),
        row(SECOND, SIZE + 1, 1 + SIZE, FIRST),
        row(SECOND, -SIZE, 1 + SIZE, FIRST),
        row(SECOND, SIZE, 1 + SIZE, THIRD),
        row(SECOND, SIZE, 1 + SIZE, FIRST[:8]),
        row(SECOND[:8], SIZE, 1 + SIZE, FIRST),
        row(b"", 0, 1, b""),
        {"chunk_hash": "no hex", "old_st": 0, "cur_st": 1},
    ],
)
def test_what_does_not_follow_from_the_tokens_is_left_out(
    fleet: FleetMatches, coordinator: Coordinator, wrong: dict[str, Any]
) -> None:
    coordinator.answer = lambda: {"matches": [wrong, RIGHT[2]]}
    assert starts(fleet) == [1 + 2 * SIZE]
    assert fleet.counts()["fleet_wrong"] == 1


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("answer", [{"matches": 5}, [], {"matches": [{"old_st": 0}]}, {}])
def test_an_answer_that_is_none_is_a_failure(fleet: FleetMatches, coordinator: Coordinator, answer: Any) -> None:
    coordinator.answer = lambda: answer
    assert starts(fleet) == []
    assert fleet.counts()["fleet_failed"] == 1


def test_one_that_is_slow_is_waited_for_three_times(
    fleet: FleetMatches, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.answer = lambda: time.sleep(5 * ANSWER_SECONDS)
    for _ in range(FAILURES_MAX):
        started = time.monotonic()
        assert starts(fleet) == []
        assert time.monotonic() - started < 4 * ANSWER_SECONDS, "it did not wait for the answer"
        until(lambda: not fleet._idle.empty())
    assert fleet.ask(SPACE, PROMPT) is None
    assert len(coordinator.asked) == FAILURES_MAX, "it costs nothing"
    assert fleet.counts() == {"fleet_late": 3, "fleet_failed": 3, "fleet_skipped": 1}
    monkeypatch.setattr(module, "ANSWER_SECONDS", 10.0)
    coordinator.answer = lambda: {"matches": RIGHT}
    fleet._again_at = 0.0  # the pause is over
    assert fleet.ask(SPACE, PROMPT) is None, "a lookup that tries it does not wait"
    until(lambda: not fleet._failures)
    assert starts(fleet) == [1, 1 + SIZE, 1 + 2 * SIZE]


@pytest.mark.usefixtures("patient")
def test_one_that_is_dead_is_followed_by_the_next(coordinator: Coordinator) -> None:
    dead = Coordinator()

    def refuse() -> Any:
        raise UnreachableError("connection refused")

    dead.answer = refuse
    fleet = FleetMatches([[cast(HttpConnection, dead), cast(HttpConnection, coordinator)]])
    assert starts(fleet) == []
    assert len(starts(fleet)) == 3
    assert len(dead.asked) == 1
    fleet.close()


def test_lookups_beyond_those_that_may_ask_go_without(fleet: FleetMatches, coordinator: Coordinator) -> None:
    coordinator.answer = lambda: time.sleep(0.2)
    assert fleet.ask(SPACE, PROMPT) is not None
    assert fleet.ask(SPACE, PROMPT) is None
    assert fleet.counts()["fleet_skipped"] == 1


def until(good: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not good():
        assert time.monotonic() < deadline
        time.sleep(0.005)
