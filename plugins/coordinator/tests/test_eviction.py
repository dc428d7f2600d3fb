"""Which objects are to be deleted, by whom, and when the books change: only with deletes that come back."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lmcache_coordinator.coordinator import Coordinator
from lmcache_coordinator.eviction import WAITED_INTERVALS
from lmcache_coordinator.registry import Registration
from lmcache_coordinator.settings import read_settings
from lmcache_coordinator.states.sqlite import SqliteState
from lmcache_core import HashChain, KeySpace, parse_canonical
from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_devkit import FakeClock
from lmcache_fleet.http_connection import ANSWER_BYTES_MAX
from lmcache_fleet.messages import (
    COMMAND_KEYS_MAX,
    DeleteKeys,
    Heartbeat,
    JournalPage,
    Kind,
    Run,
    decode_reply,
    encode,
)
from lmcache_fleet.state import CoordinatorState

SIZE = 100
INTERVALS = 3


class Site:
    """A coordinator that leads, and members that use one backend."""

    def __init__(self, *members: str, state: CoordinatorState | None = None) -> None:
        state = state or SqliteState(":memory:")
        self.coordinator = Coordinator(read_settings([]), state, LeastRecentlyUsed, FakeClock())
        self.coordinator.leadership.renew()
        self._firsts = dict.fromkeys(members, 0)
        for member in members:
            self.coordinator.registry.register(member, Registration(incarnation="1"), None, False)
            self.tell(member, Kind.STORE, space("nothing"), b"")

    def quota(self, **objects: int) -> None:
        for salt, number in objects.items():
            self.coordinator.quotas.set(salt, number * SIZE)

    def store(self, member: str, salt: str, begin: int, end: int) -> None:
        hashes = b"".join(number.to_bytes(32, "big") for number in range(begin, end))
        self.tell(member, Kind.STORE, space(salt), hashes)

    def tell(self, member: str, kind: Kind, of: KeySpace, hashes: bytes) -> None:
        page = JournalPage(
            instance=member,
            incarnation="1",
            source="redis",
            backend="redis",
            shared=True,
            spaces=(of.tail,),
            runs=(Run(kind, 0, SIZE, hashes),) if hashes else (),
            first=self._firsts[member],
        )
        self._firsts[member] += page.keys
        self.coordinator.take_page(encode(page), None)

    def interval(self) -> None:
        self.coordinator.leadership.renew()
        self.coordinator._evict()

    def commands(self, member: str) -> list[DeleteKeys]:
        return [each for each in self.coordinator.heartbeat(member, None).commands if isinstance(each, DeleteKeys)]

    def obey(self, member: str) -> int:
        """As a member does.  Returns the number of keys."""
        commands = self.commands(member)
        for command in commands:
            self.tell(member, Kind.DELETE, parse_canonical(bytes(32) + command.space).space, command.hashes)
        return sum(map(keys, commands))

    def objects(self) -> Mapping[str, int]:
        return {salt: size // SIZE for salt, size in self.coordinator.usage.by_salt().items()}


def space(salt: str) -> KeySpace:
    return KeySpace("m", 0, 0, salt, 16, HashChain.BLAKE3, bytes(16))


def keys(command: DeleteKeys) -> int:
    return len(command.hashes) // 32


def test_who_is_over_its_quota_loses_and_others_do_not() -> None:
    site = Site("one")
    site.quota(half=20, full=20, over=20)
    for salt, number in {"half": 10, "full": 20, "over": 60}.items():
        site.store("one", salt, 0, number)
    for _ in range(INTERVALS):
        site.interval()
        site.obey("one")
    assert site.objects() == {"half": 10, "full": 20, "over": 20}


def test_the_books_change_when_the_delete_comes_back() -> None:
    site = Site("one")
    site.quota(a=1)
    site.store("one", "a", 0, 10)
    site.interval()
    assert site.objects() == {"a": 10}, "it is planned, and not done"
    assert site.obey("one") == 9
    assert site.objects() == {"a": 1}


def test_who_takes_a_delete_and_does_not_answer_is_waited_for_and_then_another_one_is_asked() -> None:
    site = Site("one", "two")
    site.quota(a=0)
    site.store("one", "a", 0, 10)
    site.interval()
    assert sum(map(keys, site.commands("one"))) == 10
    for _ in range(WAITED_INTERVALS - 1):
        site.interval()
        assert site.commands("two") == [], "it is still waited for"
    site.interval()
    assert site.commands("one") == [], "not who did not answer"
    assert site.obey("two") == 10
    assert site.objects() == {}
    site.interval()
    eviction = site.coordinator.eviction
    assert (eviction.sent, eviction.sent_again, eviction.deleted_ever, eviction.waiting) == (20, 10, 10, 0)


def test_one_that_does_not_ask_and_one_that_refuses_keep_no_one_waiting() -> None:
    site = Site("frozen", "refuses", "deletes")
    site.quota(a=0)
    site.store("deletes", "a", 0, 10)
    site.interval()
    assert sum(map(keys, site.commands("refuses"))) == 10
    site.coordinator.heartbeat("refuses", None, Heartbeat(("redis",)))
    assert site.commands("refuses") == [], "it is not asked again"
    assert site.obey("deletes") == 10, "in the same interval"
    assert site.objects() == {}
    site.store("deletes", "a", 20, 30)
    site.interval()
    assert site.commands("refuses") == []
    assert site.obey("deletes") == 10
    site.interval()
    eviction = site.coordinator.eviction
    assert (eviction.sent, eviction.sent_again, eviction.deleted_ever, eviction.waiting) == (30, 10, 20, 0)


def test_where_all_refuse_each_is_asked_again_in_the_next_interval() -> None:
    site = Site("one", "two")
    site.quota(a=0)
    site.store("one", "a", 0, 10)
    for _ in range(3):
        site.interval()
        for member in ("one", "two"):
            assert sum(map(keys, site.commands(member))) == 10
            site.coordinator.heartbeat(member, None, Heartbeat(("redis", "no such source")))
            assert site.commands(member) == []


def test_what_a_member_that_leaves_was_to_delete_others_are_asked_for() -> None:
    site = Site("one", "two")
    site.quota(a=0)
    site.store("two", "a", 0, 10)
    site.interval()
    assert sum(map(keys, site.commands("one"))) == 10
    site.coordinator.registry.leave("one", None)
    site.interval()
    assert site.obey("two") == 10


def test_a_reply_has_a_part_of_many_victims_and_members_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_coordinator.eviction.REPLY_BYTES_MAX", 1000)
    site = Site("one", "two")
    site.quota(a=0)
    for salt in ("a", "b", "c"):
        site.store("one", salt, 0, 10)
    site.interval()
    assert sum(map(keys, site.commands("one"))) == 20
    assert sum(map(keys, site.commands("two"))) == 10


def test_a_reply_is_smaller_than_members_read_also_where_each_victim_has_a_space_of_its_own() -> None:
    site = Site("one", "two")
    site.quota(other=1)
    for number in range(3000):
        site.store("one", f"{number:0>1000}", number, number + 1)
    site.interval()
    replies = [encode(site.coordinator.heartbeat("two", None)) for _ in range(2)]
    assert max(map(len, replies)) < ANSWER_BYTES_MAX / 3
    assert sum(len(decode_reply(reply).commands) for reply in replies) == 3000


def test_nothing_is_evicted_until_a_quota_was_set_once() -> None:
    site = Site("one")
    site.store("one", "a", 0, 10)
    site.interval()
    assert site.commands("one") == []
    site.quota(other=1)
    site.interval()
    assert site.obey("one") == 10, "a salt without a quota has 0 bytes now"


def test_a_coordinator_that_no_longer_leads_sends_nothing() -> None:
    site = Site("one")
    site.quota(a=0)
    site.store("one", "a", 0, 10)
    site.interval()
    site.coordinator.leadership._until = float("-inf")
    assert site.commands("one") == [], "not what it had planned either"
    site.coordinator._evict()
    site.interval()
    assert site.obey("one") == 10


def test_a_command_has_few_keys() -> None:
    site = Site("one")
    site.quota(a=0)
    site.store("one", "a", 0, COMMAND_KEYS_MAX + 1)
    site.interval()
    assert sorted(map(keys, site.commands("one"))) == [1, COMMAND_KEYS_MAX]
    assert COMMAND_KEYS_MAX == 5000


def test_after_a_lost_state_quotas_come_back_one_by_one_and_tenants_lose_nothing() -> None:
    """As docs/operate/fleet.md says: who has no quota yet is exempt."""
    site = Site("one")
    for salt in ("a", "b", "c"):
        site.store("one", salt, 0, 10)
    site.interval()
    site.coordinator.quotas.set_default(None)
    for salt in ("a", "b"):
        site.quota(**{salt: 10})
        site.interval()
        assert site.obey("one") == 0
    site.coordinator.quotas.set_default(0)
    site.interval()
    site.obey("one")
    assert site.objects() == {"a": 10, "b": 10}
