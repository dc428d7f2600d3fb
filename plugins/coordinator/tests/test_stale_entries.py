"""What peers say that they did not find takes nothing out of the directory, and leads to a snapshot of its owner."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any, ClassVar
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lmcache_coordinator.coordinator import Coordinator
from lmcache_coordinator.registry import Registration
from lmcache_coordinator.settings import read_settings
from lmcache_coordinator.stale_entries import ASKED_MIN, SYNC_SECONDS, WINDOW_SECONDS
from lmcache_coordinator.states.sqlite import SqliteState
from lmcache_core import HashChain, KeySpace
from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_devkit import FakeClock
from lmcache_fleet import placements
from lmcache_fleet.directory import Directory, PureDirectory, new_directory
from lmcache_fleet.messages import (
    Found,
    FullSync,
    JournalPage,
    KeysOf,
    Kind,
    Lookup,
    Page,
    Reply,
    Run,
    SnapshotPage,
    decode_lookup,
    encode,
)

SPACE = KeySpace("m", 0, 0, "a", 256, HashChain.BLAKE3, bytes(16))
KEYS = 4
NAME = "one"


def hash_of(key: int) -> bytes:
    return bytes([key + 1]) * 32


def made(clock: FakeClock) -> Coordinator:
    coordinator = Coordinator(read_settings([]), SqliteState(":memory:"), LeastRecentlyUsed, clock)
    coordinator.registry.register(NAME, Registration(ip="10.0.0.1", incarnation="1"), None, False)
    return coordinator


def ask(coordinator: Coordinator, *found: Found) -> set[int]:
    """The keys for which the directory names an owner."""
    body = encode(Lookup((KeysOf(SPACE.tail, b"".join(map(hash_of, range(KEYS)))),), found))
    reply = coordinator.lookup(decode_lookup(body))
    ends = list(memoryview(reply.ends).cast("I"))
    return {key for key in range(KEYS) if ends[key] > ([0, *ends][key])}


def names() -> dict[str, Any]:
    return {"instance": NAME, "incarnation": "1", "source": "l1"}


class Hints(RuleBasedStateMachine):
    """A server whose L1 changes and whose journal is sent late, and readers that say late, or falsely, what they found."""

    is_pure: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        directory: Directory = PureDirectory() if self.is_pure else new_directory()
        with mock.patch.object(placements, "new_directory", return_value=directory):
            self.coordinator = made(self.clock)
        self.journal: list[tuple[Kind, int]] = []
        self.next = 0
        """What the coordinator awaits."""
        self.hints: list[Found] = []
        self.snapshots = 0
        self.building: Iterator[Page] | None = None
        for key in range(KEYS):
            self.change(Kind.STORE, key)
        self.report(KEYS)

    def states(self) -> list[frozenset[int]]:
        """What L1 had at each number of the journal."""

        def after(had: frozenset[int], change: tuple[Kind, int]) -> frozenset[int]:
            kind, key = change
            return had | {key} if kind is Kind.STORE else had - {key}

        return list(accumulate(self.journal, after, initial=frozenset()))  # type: ignore[arg-type]

    def send(self, page: Page) -> None:
        self.obey(self.coordinator.take(page, None, lambda _: None))

    def obey(self, reply: Reply) -> None:
        self.next = reply.expects.get("l1", 0)
        if FullSync("l1") in reply.commands and self.building is None:
            self.snapshots += 1
            self.building = self.snapshot(self.snapshots)

    def snapshot(self, number: int) -> Iterator[Page]:
        """In two pages, between which L1 changes: the second half of the keys is read when the second page is made."""
        begins_at = len(self.journal)
        for place, half in enumerate((range(KEYS // 2), range(KEYS // 2, KEYS))):
            now = self.states()[-1]
            hashes = b"".join(hash_of(key) for key in half if key in now)
            runs = (Run(Kind.STORE, 0, 1, hashes),) if hashes else ()
            yield SnapshotPage(
                **names(),
                spaces=(SPACE.tail,),
                runs=runs,
                snapshot=number,
                begins_at=begins_at,
                page=place,
                last=bool(place),
            )

    @rule(kind=st.sampled_from([Kind.STORE, Kind.DELETE]), key=st.integers(0, KEYS - 1))
    def change(self, kind: Kind, key: int) -> None:
        self.journal.append((kind, key))

    @rule(count=st.integers(1, 4))
    def report(self, count: int) -> None:
        """Not between the pages of a snapshot: a member sends its journal behind them."""
        changes = self.journal[self.next : self.next + count]
        if self.building is None and changes:
            runs = tuple(Run(kind, 0, 1, hash_of(key)) for kind, key in changes)
            self.send(JournalPage(**names(), spaces=(SPACE.tail,), runs=runs, first=self.next))

    @rule()
    def read(self) -> None:
        """A reader asks the owner for what the directory names, and remembers what it did not get."""
        named = ask(self.coordinator)
        self.hints.append(Found(NAME, ASKED_MIN * len(named), ASKED_MIN * len(named - self.states()[-1])))

    @precondition(lambda self: self.hints)
    @rule(place=st.integers(0, 10**6))
    def hint(self, place: int) -> None:
        """In any order, also again."""
        ask(self.coordinator, self.hints[place % len(self.hints)], Found("another", 5000, 5000))

    @rule(stale=st.integers(0, 2 * ASKED_MIN))
    def lie(self, stale: int) -> None:
        ask(self.coordinator, Found(NAME, ASKED_MIN, stale))

    @rule()
    def heartbeat(self) -> None:
        if self.building is None:
            self.obey(self.coordinator.heartbeat(NAME, None))

    @precondition(lambda self: self.building is not None)
    @rule()
    def go_on(self) -> None:
        assert self.building is not None
        page = next(self.building, None)
        if page is None:
            self.building = None
        else:
            self.send(page)

    @rule(seconds=st.sampled_from([1.0, WINDOW_SECONDS, SYNC_SECONDS]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def the_directory_follows_the_owner_alone(self) -> None:
        """What L1 had all the time since what was last taken in is there; what it never had since then is not."""
        since = self.states()[self.next :]
        shown = ask(self.coordinator)
        assert frozenset.intersection(*since) <= shown <= frozenset.union(*since)

    def teardown(self) -> None:
        """Everything is sent."""
        while self.building is not None or self.next < len(self.journal):
            if self.building is not None:
                self.go_on()
            else:
                self.report(4)
        assert ask(self.coordinator) == self.states()[-1]


class NativeHints(Hints):
    is_pure = False


TestPure = Hints.TestCase
TestNative = NativeHints.TestCase
TestPure.settings = TestNative.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def coordinator(clock: FakeClock) -> Coordinator:
    return made(clock)


def syncs(coordinator: Coordinator) -> int:
    return coordinator.heartbeat(NAME, None).commands.count(FullSync("l1"))


def test_a_high_share_asks_for_a_snapshot_once_in_ten_minutes(coordinator: Coordinator, clock: FakeClock) -> None:
    ask(coordinator, Found(NAME, ASKED_MIN, ASKED_MIN // 2))
    assert syncs(coordinator) == 0, "half of them is not high"
    ask(coordinator, Found(NAME, ASKED_MIN, ASKED_MIN))
    assert [syncs(coordinator), syncs(coordinator)] == [1, 0]
    clock.advance(SYNC_SECONDS + 1)
    assert syncs(coordinator) == 0, "that was long ago"
    ask(coordinator, Found(NAME, ASKED_MIN, ASKED_MIN))
    assert syncs(coordinator) == 1


def test_few_objects_say_nothing(coordinator: Coordinator) -> None:
    ask(coordinator, Found(NAME, ASKED_MIN - 1, ASKED_MIN - 1))
    assert syncs(coordinator) == 0


def test_counts_end_with_the_server(coordinator: Coordinator) -> None:
    ask(coordinator, Found(NAME, 10, 20), Found(NAME, 10, 1), Found("unknown", 5, 5))
    assert coordinator.stale.totals() == {NAME: (20, 11)}, "more than were asked for cannot be missing"
    ask(coordinator, Found(NAME, 0, 1))
    assert coordinator.stale.totals() == {NAME: (20, 12)}, "read, and damaged"
    coordinator.registry.leave(NAME, None)
    assert coordinator.stale.totals() == {}


def test_people_see_it(coordinator: Coordinator, clock: FakeClock) -> None:
    from lmcache_coordinator.metrics import exposition

    def reasons() -> list[str]:
        active = [each.condition for each in coordinator.conditions.active()]
        return [each.reason for each in active if (each.name, each.subject) == ("directory_stale", f"instance {NAME}")]

    assert reasons() == []
    ask(coordinator, Found(NAME, 2000, 1500))
    assert reasons() == ["peers did not get 1500 of 2000 objects that the directory says it has in L1"]
    text = exposition(coordinator).decode()
    assert f'lmcache_coordinator_peers_asked_total{{instance="{NAME}"}} 2000' in text
    assert f'lmcache_coordinator_peers_stale_total{{instance="{NAME}"}} 1500' in text
    clock.advance(WINDOW_SECONDS + 1)
    assert reasons() == []
