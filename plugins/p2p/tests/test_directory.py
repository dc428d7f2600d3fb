"""What peers ask coordinators, and what coordinators that are silent or slow cost lookups."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from lmcache_core import KeySpace, ObjectKey, Outcome
from lmcache_devkit.borrowed_memory import SPACE
from lmcache_fleet import messages
from lmcache_fleet.http_connection import Answer, UnreachableError
from lmcache_fleet.messages import HASH_BYTES, KeyOwner, LookupReply, decode_lookup, encode
from lmcache_p2p import coordinators
from lmcache_p2p.coordinators import DIRECTORY_SHARE, Directory
from plugins.p2p.tests.rig import ReaderRig, ScriptedOwner, wait

DONE, MISSING = Outcome.DONE, Outcome.MISSING
TIMEOUT = 2.0
MARGIN = 0.25


class FakeCoordinator:
    """A connection to one that says that this owner has the keys whose hash begins with an even number."""

    def __init__(self, owner: ScriptedOwner) -> None:
        self.owner, self.url = owner, "http://fake"
        self.silent, self.seconds = False, 0.0
        self.asked: list[messages.Lookup] = []

    def ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        asked = decode_lookup(body)
        self.asked.append(asked)
        if self.silent:
            time.sleep(TIMEOUT * DIRECTORY_SHARE)
            raise UnreachableError("timed out")
        time.sleep(self.seconds)
        ends, places = array("I"), array("H")
        for part in asked.parts:
            for at in range(0, len(part.hashes), HASH_BYTES):
                if part.hashes[at] % 2 == 0:
                    places.append(0)
                ends.append(len(places))
        owner = KeyOwner(self.owner.name, "l1", 0, "", 0, 0, str(self.owner.member.url))
        return Answer(200, encode(LookupReply((owner,), ends.tobytes(), places.tobytes())))


@pytest.fixture
def owner() -> Iterator[ScriptedOwner]:
    with ScriptedOwner() as owner:
        yield owner


def directory_of(*fakes: FakeCoordinator) -> Directory:
    connections: Any = fakes
    return Directory(connections, "reader")


def spaces(count: int) -> list[KeySpace]:
    return [replace(SPACE, kv_rank=rank) for rank in range(count)]


def test_keys_of_all_spaces_are_one_question(owner: ScriptedOwner) -> None:
    """Ranks and groups of a job: their keys are in turns, and so are the answers."""
    fake = FakeCoordinator(owner)
    keys = [ObjectKey(space, bytes([number]) * HASH_BYTES) for number in range(5) for space in spaces(16)]
    found = directory_of(fake).owners(keys)
    assert [(len(asked.parts), asked.keys) for asked in fake.asked] == [(16, 80)]
    assert found == [(owner.member,) if number % 2 == 0 else () for number in range(5) for _ in range(16)]


def test_questions_are_bounded(owner: ScriptedOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinators, "PAGE_KEYS_MAX", 7)
    fake = FakeCoordinator(owner)
    keys = [ObjectKey(space, bytes([number]) * HASH_BYTES) for number in range(5) for space in spaces(2)]
    found = directory_of(fake).owners(keys)
    assert [asked.keys for asked in fake.asked] == [7, 3]
    assert found == [(owner.member,) if number % 2 == 0 else () for number in range(5) for _ in range(2)]


def timed(rig: ReaderRig, *numbers: int) -> tuple[list[Outcome], float]:
    start = time.monotonic()
    return rig.lookup(*numbers), time.monotonic() - start


def test_silent_coordinators_cost_one_lookup_their_share_of_its_time(
    owner: ScriptedOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, and not again before one answers, which is seen in the background."""
    monkeypatch.setattr(coordinators, "QUIET_SECONDS", (0.1,))
    fakes = [FakeCoordinator(owner) for _ in range(3)]
    with ReaderRig(owner, directory=directory_of(*fakes), lookup_timeout=TIMEOUT) as rig:
        assert timed(rig, 0)[0] == [DONE]
        for fake in fakes:
            fake.silent = True
        found, seconds = timed(rig, 0)
        assert (found, rig.reader.finds_nothing) == ([MISSING], True)
        assert seconds < TIMEOUT * DIRECTORY_SHARE + MARGIN
        until = time.monotonic() + 2 * TIMEOUT
        while time.monotonic() < until:
            assert timed(rig, 0)[1] < MARGIN
            time.sleep(0.02)
        assert {asked.keys for fake in fakes for asked in fake.asked[2:]} == {0}, "probes"
        for fake in fakes:
            fake.silent = False
        wait(lambda: not rig.reader.finds_nothing)
        assert rig.lookup(0) == [DONE]


def test_another_coordinator_is_asked_first_once_one_was_silent(owner: ScriptedOwner) -> None:
    one, two = fakes = [FakeCoordinator(owner) for _ in range(2)]
    one.silent = True
    with ReaderRig(owner, directory=directory_of(*fakes), lookup_timeout=TIMEOUT) as rig:
        rig.lookup(0)
        wait(lambda: rig.lookup(0) == [DONE])
        assert len(one.asked) == 1
        assert timed(rig, 0)[1] < MARGIN
        assert len(two.asked) >= 2


def test_a_slow_coordinator_does_not_make_lookups_wait_for_each_other(owner: ScriptedOwner) -> None:
    fake = FakeCoordinator(owner)
    fake.seconds = TIMEOUT
    with ReaderRig(owner, directory=directory_of(fake), lookup_timeout=TIMEOUT) as rig:
        taken: list[float] = []
        threads = [threading.Thread(target=lambda: taken.append(timed(rig, 0)[1])) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert max(taken) < TIMEOUT * DIRECTORY_SHARE + MARGIN
        assert len(fake.asked) == 1, "those that were not asked in time are not asked at all"
        wait(lambda: not rig.reader.finds_nothing)
