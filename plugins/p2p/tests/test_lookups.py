"""How long a lookup waits, whom it asks next, and what is kept of whom."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lmcache_core import Outcome
from lmcache_p2p import lessee as lessee_module
from plugins.p2p.tests.rig import ReaderRig, ScriptedOwner, key_of, wait

DONE, MISSING = Outcome.DONE, Outcome.MISSING
TIMEOUT = 1.0


@pytest.fixture
def owner() -> Iterator[ScriptedOwner]:
    with ScriptedOwner() as owner:
        yield owner


@pytest.fixture
def second() -> Iterator[ScriptedOwner]:
    with ScriptedOwner("second") as owner:
        yield owner


@pytest.fixture
def rig(owner: ScriptedOwner, second: ScriptedOwner) -> Iterator[ReaderRig]:
    """Its directory says that both owners have everything; the first one is asked first."""
    with ReaderRig(owner, second, lookup_timeout=TIMEOUT) as rig:
        yield rig


def after(seconds: float) -> Any:
    """A script that is right, and so late."""

    def late(_: Any, right: Any) -> Any:
        time.sleep(seconds)
        return right

    return late


def test_a_data_port_that_does_not_answer_costs_one_lookup_its_timeout(owner: ScriptedOwner) -> None:
    """The channel is connected to in the background, and read by once that has worked."""
    with ReaderRig(owner, lookup_timeout=TIMEOUT) as rig:
        channel: Any = rig.channels["tcp"]
        answers, connect, connects = threading.Event(), channel.connect, list[bytes]()

        def connect_late(description: bytes) -> Any:
            connects.append(description)
            assert answers.wait(20)
            return connect(description)

        channel.connect = connect_late
        start = time.monotonic()
        assert rig.lookup(0) == [MISSING]
        assert time.monotonic() - start < TIMEOUT + 0.5
        start = time.monotonic()
        assert rig.lookup(0) == [MISSING]
        assert time.monotonic() - start < TIMEOUT, "the next one does not wait for it"
        answers.set()
        wait(lambda: rig.lookup(0) == [DONE])
        assert (len(connects), rig.counts()["failed"]) == (1, 0)


def test_one_that_leaves_little_time_does_not_cut_off_the_next(
    owner: ScriptedOwner, second: ScriptedOwner, rig: ReaderRig
) -> None:
    del owner.objects[key_of(5)], owner.objects[key_of(6)]
    assert rig.lookup(5) == [DONE], "of the second"
    owner.script["query_lookup_results"] = after(0.9 * TIMEOUT)
    asked = second.asked.count("lookup_and_lock")
    assert rig.lookup(6) == [MISSING]
    assert second.asked.count("lookup_and_lock") == asked, "there was no time for it"
    assert rig.load(5) == [DONE]


def test_an_answer_after_the_lookup_is_not_held_against_its_owner(
    owner: ScriptedOwner, second: ScriptedOwner, rig: ReaderRig
) -> None:
    """It had less than its time.  What it leased is given back."""
    del owner.objects[key_of(5)], owner.objects[key_of(6)]
    assert rig.lookup(5) == [DONE], "of the second"
    owner.script["query_lookup_results"] = after(0.5 * TIMEOUT)
    second.script["query_lookup_results"] = after(0.8 * TIMEOUT)
    start = time.monotonic()
    assert rig.lookup(6) == [MISSING]
    assert time.monotonic() - start < TIMEOUT + 0.5
    wait(lambda: second.asked.count("end") == 1)
    assert (rig.counts("second")["failed"], rig.load(5)) == (0, [DONE])


def test_the_time_to_connect_is_not_taken_from_the_answer(owner: ScriptedOwner) -> None:
    """The lookup that connects may come too late; its owner is asked by the next one."""
    owner.script["hello"] = after(0.9 * TIMEOUT)
    owner.script["lookup_and_lock"] = after(0.3 * TIMEOUT)
    with ReaderRig(owner, lookup_timeout=TIMEOUT) as rig:
        assert rig.lookup(0) == [MISSING]
        wait(lambda: owner.asked.count("end") == 1)
        assert rig.lookup(0) == [DONE]
        assert rig.counts()["failed"] == 0


def test_one_that_has_left_is_disconnected(owner: ScriptedOwner) -> None:
    with ReaderRig(owner) as rig:
        assert rig.lookup(0) == [DONE]
        (peer,) = rig.reader.peers
        rig.reader.members_left(frozenset({owner.member.url.key}))
        wait(lambda: not rig.reader.peers)
        assert (peer.route, peer.session, rig.reader.status()["peers"]) == (None, b"", {})
        assert rig.load(0) == [DONE], "the directory names it again"
        assert rig.reader.peers != (peer,)


def test_one_that_has_left_while_it_is_connected_to_is_not_kept(owner: ScriptedOwner) -> None:
    with ReaderRig(owner, lookup_timeout=TIMEOUT) as rig:
        channel: Any = rig.channels["tcp"]
        answers, connect, routes = threading.Event(), channel.connect, list[Any]()

        def connect_late(description: bytes) -> Any:
            assert answers.wait(20)
            routes.append(connect(description))
            return routes[-1]

        channel.connect = connect_late
        assert rig.lookup(0) == [MISSING]
        rig.reader.members_left(frozenset({owner.member.url.key}))
        answers.set()
        wait(lambda: routes and routes[0].is_closed)


def test_what_one_owner_damages_is_not_asked_of_it_for_a_while(
    owner: ScriptedOwner, second: ScriptedOwner, rig: ReaderRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of others it is, and other keys are."""
    owner.objects[key_of(0)].view[5000] ^= 1
    assert rig.lookup(0, 1) == [DONE, DONE]
    assert rig.load(0, 1) == [DONE, DONE]
    rig.reject(0)
    rig.unpin(0, 1)
    assert ("owner", 0, 1) in rig.directory.found_there(), "the coordinator hears of it"
    asked = rig.counts("owner")["asked"]
    assert rig.lookup(0) == [DONE]
    assert (rig.counts("owner")["asked"], rig.counts("second")["hit"]) == (asked, 1)
    assert rig.lookup(1) == [DONE]
    monkeypatch.setattr(lessee_module, "REJECTED_SECONDS", 0.0)
    assert rig.lookup(0) == [DONE]
    assert rig.counts("owner")["asked"] == asked + 2


def test_what_was_rejected_without_a_read_is_found_nowhere_for_a_while(
    rig: ReaderRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.reject(0)
    assert rig.lookup(0, 1) == [MISSING, DONE]
    monkeypatch.setattr(lessee_module, "REJECTED_SECONDS", 0.0)
    assert rig.lookup(0) == [DONE]


def test_a_hint_ends_with_the_object_and_the_directory_is_asked(owner: ScriptedOwner, rig: ReaderRig) -> None:
    del owner.objects[key_of(5)]
    rig.reader.hints.add([key_of(4).chunk_hash, key_of(5).chunk_hash], "owner", 60.0)
    assert rig.lookup(4) == [DONE]
    assert rig.directory.asked == 0
    assert rig.lookup(4, 5) == [DONE, DONE]
    assert rig.directory.asked == 1, "in the same lookup"
    assert [rig.reader.hints.peer_of(key_of(number)) for number in (4, 5)] == ["owner", ""]
