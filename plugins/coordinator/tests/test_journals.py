"""What sources members have, when they begin anew, and when a shared backend is listed or forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lmcache_client.errors import ProtocolError
from lmcache_coordinator.coordinator import Coordinator
from lmcache_coordinator.journals import UNUSED_TIMEOUTS
from lmcache_coordinator.registry import Registration
from lmcache_coordinator.settings import read_settings
from lmcache_coordinator.states.sqlite import SqliteState
from lmcache_core import HashChain, KeySpace
from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_devkit import FakeClock
from lmcache_fleet.messages import (
    L1,
    SOURCES_MAX,
    DeleteKeys,
    Freeze,
    FullSync,
    Heartbeat,
    JournalPage,
    Kind,
    Reply,
    Run,
    SnapshotPage,
    encode,
)
from lmcache_fleet.placements import Location, Placements, space_number

SPACE = KeySpace("m", 0x01000100, 0, "a", 16, HashChain.BLAKE3, bytes(16))
SIZE = 10
TIMEOUT = 30.0


def names(begin: int, end: int) -> bytes:
    return b"".join(number.to_bytes(32, "little") for number in range(begin, end))


class Site:
    def __init__(self, *flags: str) -> None:
        self.clock = FakeClock()
        self.coordinator = Coordinator(read_settings(flags), SqliteState(":memory:"), LeastRecentlyUsed, self.clock)
        self.coordinator.leadership.renew()
        self.snapshots = 0

    def join(self, *members: str, incarnation: str = "1") -> None:
        for member in members:
            self.coordinator.registry.register(member, Registration(incarnation=incarnation), None, False)

    def journal(self, member: str, source: str, first: int, begin: int = 0, end: int = 0, **about: Any) -> Reply:
        run = Run(Kind.STORE, 0, SIZE, names(begin, end))
        page = JournalPage(
            **_about(member, source, about), spaces=(SPACE.tail,), runs=(run,) if run.hashes else (), first=first
        )
        return self.coordinator.take_page(encode(page), None)

    def snapshot(
        self, member: str, source: str, begins_at: int, *parts: tuple[int, int], whole: bool = True, **about: Any
    ) -> Reply:
        self.snapshots += 1
        reply = Reply()
        for number, (begin, end) in enumerate(parts):
            run = Run(Kind.STORE, 0, SIZE, names(begin, end))
            page = SnapshotPage(
                **_about(member, source, about),
                spaces=(SPACE.tail,),
                runs=(run,) if run.hashes else (),
                snapshot=self.snapshots,
                begins_at=begins_at,
                page=number,
                last=whole and number == len(parts) - 1,
            )
            reply = self.coordinator.take_page(encode(page), None)
        return reply

    def heartbeat(self, member: str, **says: Any) -> Reply:
        return self.coordinator.heartbeat(member, None, Heartbeat(**says))

    def has(self, number: int) -> list[Location]:
        (found,) = self.coordinator.placements.lookup(space_number(SPACE.tail), names(number, number + 1))
        return sorted(found)

    def listings(self, member: str, source: str = "redis", seconds: float = 300.0, **about: Any) -> int:
        """How often it lists in this time, where it does what it is asked to."""
        done = 0
        for _ in range(int(seconds)):
            self.clock.advance(1.0)
            reply = self.heartbeat(member)
            if FullSync(source) in reply.commands:
                done += 1
                self.snapshot(member, source, reply.expects.get(source, 0), (0, 0), **about)
        return done


SHARED: dict[str, Any] = {"shared": True, "backend": "redis"}


def _about(member: str, source: str, about: dict[str, Any]) -> dict[str, Any]:
    return {"instance": member, "incarnation": "1", "source": source, **about}


@pytest.fixture
def site() -> Site:
    return Site()


# --- an adapter that is removed, and added again


def test_an_adapter_that_comes_again_under_its_name_begins_anew(site: Site) -> None:
    site.join("one")
    site.snapshot("one", "disk", 100, (0, 3), epoch=1)
    reply = site.snapshot("one", "disk", 1, (5, 6), epoch=2)
    assert reply.expects == {"disk": 1}
    assert [bool(site.has(number)) for number in (0, 5)] == [False, True]
    reply = site.journal("one", "disk", 100, 0, 3, epoch=1)
    assert (reply.expects, site.has(0)) == ({"disk": 1}, []), "a late page of the first one"
    site.journal("one", "redis", 100, epoch=1, **SHARED)
    site.journal("one", "redis", 100, 0, 2, epoch=1, **SHARED)
    site.journal("one", "redis", 1, epoch=2, **SHARED)
    reply = site.journal("one", "redis", 1, 2, 4, epoch=2, **SHARED)
    assert reply.expects["redis"] == 3
    assert site.coordinator.usage.by_salt() == {"a": 4 * SIZE}


def test_what_a_removed_adapter_had_is_gone(site: Site) -> None:
    site.join("one")
    site.snapshot("one", L1, 1, (0, 2))
    site.snapshot("one", "disk", 1, (0, 2), epoch=1)
    site.heartbeat("one")
    assert site.heartbeat("one", sources={L1: 0, "disk": 1}).expects == {L1: 1, "disk": 1}
    assert site.heartbeat("one", sources={L1: 0}).expects == {L1: 1}
    assert site.has(0) == [Location("one", 0, L1)]
    assert set(site.coordinator.placements.counts()) == {Location("one", 0, L1)}


def test_a_heartbeat_from_before_an_adapter_was_added_again_changes_nothing(site: Site) -> None:
    site.join("one")
    site.snapshot("one", "disk", 1, (0, 2), epoch=2)
    assert site.heartbeat("one", sources={"disk": 1}).expects == {"disk": 1}
    assert site.heartbeat("one", sources={"disk": 3}).expects == {}


# --- shared backends


def test_backends_of_two_types_with_one_name_are_two(site: Site) -> None:
    site.join("one", "two")
    site.journal("one", "x", 1, 0, 3, shared=True, backend="redis")
    site.journal("two", "x", 1, 3, 5, shared=True, backend="s3")
    for _ in range(10):
        site.coordinator._sweep()
    site.join("three")
    site.snapshot("three", L1, 1, (9, 10))
    site.journal("one", "x", 4, 5, 6, shared=True, backend="redis")
    assert [site.has(number) for number in (0, 3, 5)] == [
        [Location("", 0, "x")],
        [Location("", 0, "x (s3)")],
        [Location("", 0, "x")],
    ]
    assert site.coordinator.journals.sources()["two"] == ["x (s3)"]
    found = site.coordinator.router.by_hashes("m", "a", 16, names(3, 5))
    assert (found["one"].longest, found["two"].longest) == (0, 32)


def test_a_generation_that_is_not_kept_any_more_takes_nothing() -> None:
    placements = Placements()
    generation = placements.begin(Location("one", 0, L1))
    placements.drop(generation)
    with pytest.raises(AssertionError):
        placements.add(generation, 1, names(0, 1))


def evicted(site: Site, member: str) -> int:
    site.coordinator.leadership.renew()
    site.coordinator._evict()
    commands = site.heartbeat(member).commands
    return sum(len(each.hashes) // 32 for each in commands if isinstance(each, DeleteKeys))


def test_what_is_in_a_backend_without_users_is_not_counted_against_others(site: Site) -> None:
    site.join("old", "new")
    site.coordinator.quotas.set("a", 5 * SIZE)
    site.journal("old", "before", 1, 0, 10, **SHARED)
    site.journal("new", "after", 1, 10, 11, **SHARED)
    assert evicted(site, "new") == 0, "it can delete nothing that would help"
    site.coordinator.registry.leave("old", None)
    for _ in range(3):
        assert evicted(site, "new") == 0
    usage, journals = site.coordinator.usage, site.coordinator.journals
    site.clock.advance(TIMEOUT)
    site.coordinator._sweep()
    assert (usage.by_salt(), len(journals.backends())) == ({"a": 11 * SIZE}, 2), "its servers may come back"
    site.clock.advance(UNUSED_TIMEOUTS * TIMEOUT)
    site.heartbeat("new")
    site.coordinator._sweep()
    assert usage.by_salt() == {"a": SIZE}
    assert [each.name for each in journals.backends()] == ["after"]
    assert (site.has(0), len(site.has(10))) == ([], 1)
    assert [each.name for each in journals.incomplete()] == ["after"]
    site.join("old")
    site.journal("old", "before", 1, 0, 1, **SHARED)
    assert usage.by_salt() == {"a": 2 * SIZE}


def test_a_listing_that_is_under_way_ends_with_its_backend(site: Site) -> None:
    site.join("old")
    site.journal("old", "redis", 1, **SHARED)
    site.snapshot("old", "redis", 2, (0, 5), (5, 6), whole=False, **SHARED)
    site.coordinator.registry.leave("old", None)
    site.coordinator._sweep()
    site.clock.advance(UNUSED_TIMEOUTS * TIMEOUT)
    site.coordinator._sweep()
    assert site.coordinator.journals.backends() == []
    assert site.coordinator.usage.by_salt() == {}


@pytest.mark.parametrize("flag", ["--no-enable-startup-resync", "--enable-startup-resync"])
def test_a_member_that_has_done_something_before_it_joins_lists_and_once_more_for_late_reports(flag: str) -> None:
    site = Site(flag)
    expected = 2 * int(flag == "--enable-startup-resync")
    site.join("one")
    site.journal("one", "redis", 1, **SHARED)
    assert site.listings("one", **SHARED) == expected
    site.join("two")
    site.journal("two", "redis", 1, **SHARED)
    assert site.listings("two", **SHARED) == expected


def test_a_store_is_reported_after_a_listing_and_was_deleted_before_it_by_a_member_that_has_joined_since() -> None:
    site = Site("--enable-startup-resync")
    site.join("one")
    site.journal("one", "redis", 0, **SHARED)
    assert site.listings("one", **SHARED) == 1
    site.join("two")
    site.journal("two", "redis", 1, **SHARED)  # before that, it has deleted what "one" has stored and not reported yet
    assert site.listings("two", seconds=TIMEOUT / 2, **SHARED) == 1
    site.journal("one", "redis", 0, 0, 1, **SHARED)
    assert site.has(0)
    assert site.listings("two", **SHARED) == 1
    assert not site.has(0)


@pytest.mark.parametrize("lister", ["stays", "flaps"])
def test_members_that_join_and_leave_all_the_time_do_not_have_a_backend_listed_all_the_time(lister: str) -> None:
    """100 of them in ten minutes: a listing for each `--instance-timeout`, and not for each member."""
    site = Site("--enable-startup-resync")
    site.join("stays")
    site.journal("stays", "redis", 0, **SHARED)
    listings = 0
    for second in range(600):
        site.clock.advance(1.0)
        if second % 6 == 3:
            site.coordinator.registry.leave("flaps", None)
        replies = {}
        if second % 6 == 0:
            site.join("flaps")
            replies["flaps"] = site.journal("flaps", "redis", second + 1, **SHARED)
        elif lister == "stays" or second % 6 < 3:
            replies[lister] = site.heartbeat(lister)
        reply = replies.get(lister)
        if reply and FullSync("redis") in reply.commands:
            listings += 1
            begins_at = reply.expects.get("redis", 0)
            site.snapshot(lister, "redis", begins_at, (0, 1), (1, 2), whole=lister == "stays", **SHARED)
    assert 600 / TIMEOUT / 2 <= listings <= 600 / TIMEOUT + 1


def test_a_member_that_comes_back_has_lost_reports_and_lists() -> None:
    site = Site("--no-enable-startup-resync")
    site.join("one", "two")
    for member in ("one", "two"):
        site.journal(member, "redis", 1, **SHARED)
    site.coordinator.registry.leave("one", None)
    assert site.listings("two", **SHARED) == 2, "what it did last was not sent, and others may be late"
    site.join("one")
    site.journal("one", "redis", 50, **SHARED)
    assert site.listings("one", **SHARED) == 2
    site.journal("one", "redis", 10**10, **SHARED)
    assert site.listings("one", **SHARED) == 2, "a gap"


# --- pages that fail


def test_a_page_that_fails_is_sent_again_with_everything(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.join("one")
    site.snapshot("one", L1, 1, (0, 2))
    add = Placements.add

    def fail(*_: Any) -> int:
        raise MemoryError

    monkeypatch.setattr(Placements, "add", fail)
    with pytest.raises(MemoryError):
        site.journal("one", L1, 1, 2, 4)
    monkeypatch.setattr(Placements, "add", add)
    assert site.heartbeat("one").expects == {}
    assert site.journal("one", L1, 3, 4, 5).expects == {}
    assert site.snapshot("one", L1, 4, (0, 5)).expects == {L1: 4}
    assert all(site.has(number) for number in range(5))


def test_a_member_has_a_bounded_number_of_sources(site: Site) -> None:
    site.join("one")
    for number in range(SOURCES_MAX):
        site.journal("one", f"disk-{number}", 0)
    with pytest.raises(ProtocolError, match="has 256 sources, which is the most; 'one more' is one more"):
        site.journal("one", "one more", 0)
    assert len(site.journal("one", "disk-0", 0, 0, 1).expects) == SOURCES_MAX


# --- freeze


def freezes(reply: Reply) -> bool:
    return any(isinstance(command, Freeze) for command in reply.commands)


def test_a_server_is_frozen_while_a_snapshot_is_under_way() -> None:
    site = Site("--sync-mode", "freeze")
    site.join("one")
    assert freezes(site.heartbeat("one"))
    assert not freezes(site.snapshot("one", L1, 1, (0, 1)))
    parts: Sequence[tuple[int, int]] = [(0, 1), (1, 2)]
    assert freezes(site.snapshot("one", L1, 5, *parts, whole=False)), "after an overrun"
    assert not freezes(site.snapshot("one", L1, 6, *parts))
    site.coordinator.stale.heard("one", 5000, 5000)
    reply = site.heartbeat("one")
    assert FullSync(L1) in reply.commands
    assert freezes(reply)
    assert freezes(site.snapshot("one", L1, 7, *parts, whole=False))
