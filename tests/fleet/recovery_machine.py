"""Members and coordinators in one process, whose messages are lost, doubled, cut, late and out of order, and which start again.

Real are L1, the journals, the member's links and the coordinator; the connection, the clock and the shared backend are models.
At quiet, the directory of each coordinator is what the members' L1s have, and usage is what the backend has, to the byte.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lmcache_client.errors import ProtocolError
from lmcache_coordinator.coordinator import Coordinator
from lmcache_coordinator.registry import InstanceTakenError, Registration, UnknownInstanceError
from lmcache_coordinator.settings import CoordinatorSettings
from lmcache_coordinator.states.sqlite import SqliteState
from lmcache_core import Capability, HashChain, KeyPage, KeySpace, ObjectKey, Outcome, ServerInfo, ServiceContext
from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_core.contracts.residency import ResidencyFeed
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.adapter_feed import AdapterFeed
from lmcache_core.kernels.choice import PURE
from lmcache_core.l1.arena import anonymous_arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.leases import Owner, OwnerKind
from lmcache_core.model.keys import HASH_BYTES
from lmcache_devkit import FakeClock
from lmcache_fleet.directory import PureDirectory
from lmcache_fleet.http_connection import Answer, HttpConnection, RefusedError, UnreachableError
from lmcache_fleet.messages import SECRET_HEADER, decode_heartbeat, encode
from lmcache_fleet.placements import space_number
from lmcache_fleet_member.member import Member
from lmcache_fleet_member.settings import MemberSettings

MEMBERS: Final = 2
COORDINATORS: Final = 2
TIMEOUT_SECONDS: Final = 30.0
SLOTS: Final = 24
MESSAGES_MAX: Final = 2000
"""Of one link; what is endless is not right."""
KEYS: Final = 20
SPACES: Final = [KeySpace("m", 1, 0, salt, 16, HashChain.BLAKE3, bytes(16)) for salt in ("", "a")]
WORKER: Final = Owner(OwnerKind.WORKER, 7)
NUMBERS = st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=6, unique=True)


class Fate(StrEnum):
    """What happens to one message."""

    ARRIVES = "arrives"
    LOST = "lost"
    UNANSWERED = "unanswered"
    """It arrives, and its answer does not."""
    DOUBLED = "doubled"
    LATE = "late"
    """The member sees an error; the message arrives at some other time."""
    CUT = "cut"


def name(number: int) -> bytes:
    return number.to_bytes(HASH_BYTES, "big")


class SharedBackend:
    """What all members have together."""

    def __init__(self) -> None:
        self.objects: dict[ObjectKey, int] = {}

    def page(self, cursor: str | None, limit: int) -> KeyPage:
        after = cursor or ""
        found = sorted((key.canonical.hex(), key) for key in self.objects if key.canonical.hex() > after)[:limit]
        keys = tuple(key for _, key in found)
        return KeyPage(keys, found[-1][0] if len(found) == limit else None, tuple(self.objects[key] for key in keys))


class Server:
    """A server from its start to its end."""

    def __init__(self, number: int, boot: int, backend: SharedBackend, kept: int, hook: Callable[[], None]) -> None:
        self.backend = backend
        self.is_frozen = False
        self.arena = anonymous_arena(16384 * SLOTS)
        self.cache = L1Cache(self.arena, 4096, PURE)
        self.cache._index.journal._keys_max = kept
        self.records = [self.cache.intern(space, 4096) for space in SPACES]
        self._kept, self._adapters = kept, 0
        self.feeds: list[ResidencyFeed] = [self.cache.feed]
        self.replace_adapter()
        self._hook = hook
        control = SimpleNamespace(
            adapters=SimpleNamespace(clients=list), freeze=SimpleNamespace(begin=self.freeze, end=self.thaw)
        )
        server = SimpleNamespace(status=dict)
        context = SimpleNamespace(feeds=self.feeds, control=control, value_at=lambda _: None, server=server)
        urls = tuple(f"http://127.0.0.1:{9300 + each}" for each in range(COORDINATORS))
        settings = MemberSettings.model_validate(
            {"urls": urls, "advertise_ip": "127.0.0.1", "heartbeat_interval": 1e-9, "l2_event_reporting": True}
        )
        self.member = Member(settings, cast(ServiceContext, context))
        self.id = f"server-{number}"
        self.member.start(ServerInfo(self.id, f"boot-{boot}", "tcp://127.0.0.1:5555", None, 16, "0"))
        new, _ = self.member.look()
        self.links = sorted(new, key=lambda link: link.url)

    def replace_adapter(self) -> None:
        """It is removed, and added again under its name."""
        client = SimpleNamespace(
            name="redis", index=self._adapters, capabilities=Capability.SHARED, list_keys=self._list
        )
        self.shared = AdapterFeed(cast(AdapterClient, client), "redis")
        self.shared.journal._keys_max = self._kept
        self.feeds[1:] = [self.shared]
        self._adapters += 1

    def _list(self, cursor: str | None, limit: int) -> KeyPage:
        self._hook()
        return self.backend.page(cursor, min(limit, 3))

    def change(self, chooser: random.Random) -> None:
        """Store some, and delete some, in both tiers."""
        for _ in range(chooser.randrange(3)):
            numbers = chooser.sample(range(KEYS), chooser.randint(1, 5))
            space = chooser.randrange(len(SPACES))
            match chooser.randrange(4):
                case 0:
                    self.store(space, numbers)
                case 1:
                    self.cache.contents.drop(SPACES[space], [name(each) for each in numbers], force=True)
                case 2:
                    self.store_shared(space, numbers, chooser.choice([100, 250]))
                case _:
                    self.delete_shared(space, numbers)

    def store(self, space: int, numbers: Sequence[int]) -> None:
        lease, _ = self.cache.reserve(WORKER, self.records[space], [name(each) for each in numbers], None)
        if slots := list(lease.slots):
            self.cache.publish(lease, slots, [], temporary=False)
        self.cache.leases.end(lease)

    def store_shared(self, space: int, numbers: Sequence[int], size: int) -> None:
        keys = [ObjectKey(SPACES[space], name(each)) for each in numbers]
        new = [key for key in keys if key not in self.backend.objects]
        self.backend.objects.update(dict.fromkeys(new, size))
        items = [SimpleNamespace(key=key, buffer=SimpleNamespace(length=size)) for key in new]
        self._answered("store", items)

    def delete_shared(self, space: int, numbers: Sequence[int]) -> None:
        keys = [ObjectKey(SPACES[space], name(each)) for each in numbers]
        for key in keys:
            self.backend.objects.pop(key, None)
        self._answered("delete", keys)

    def _answered(self, verb: str, subjects: Sequence[Any]) -> None:
        pending = SimpleNamespace(verb=verb, subjects=subjects)
        self.shared.answered(cast(Any, pending), [Outcome.DONE] * len(subjects))

    def freeze(self, seconds: float | None, holder: str) -> None:
        self.is_frozen = True

    def thaw(self, holder: str) -> None:
        self.is_frozen = False

    def has(self) -> set[tuple[int, bytes]]:
        views = self.cache.contents.views(0, self.cache.contents.slot_numbers)
        return {
            (SPACES.index(view.key.space), view.key.chunk_hash) for view in views if view.state in ("cached", "held")
        }

    def end(self) -> None:
        self.cache.feed.close()
        self.arena.close()


class Site:
    """One coordinator after the other, over one state, and the messages that reach them."""

    def __init__(self, sync_mode: str = "live") -> None:
        self.settings = CoordinatorSettings.model_validate(
            {"instance_timeout": TIMEOUT_SECONDS, "sync_mode": sync_mode}
        )
        self.clock = FakeClock()
        self.state = SqliteState(":memory:")
        self.late: list[tuple[str, str, bytes, Mapping[str, str]]] = []
        self.start()

    def start(self) -> None:
        self.coordinator = Coordinator(self.settings, self.state, LeastRecentlyUsed, self.clock)
        self.coordinator.placements.__init__(PureDirectory())  # type: ignore[misc]

    def arrive(self, which: int) -> None:
        """A late message does.  One that comes before its server has registered goes on being late."""
        message = self.late.pop(which)
        try:
            self.deliver(*message)
        except RefusedError as error:
            if error.status == 404:
                self.late.append(message)

    def deliver(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        """As the routes do.  Raises RefusedError."""
        secret = bytes.fromhex(headers[SECRET_HEADER]) if SECRET_HEADER in headers else None
        coordinator = self.coordinator
        try:
            match method, path.split("/")[1:]:
                case "POST", ["instances"]:
                    asked = msgspec.json.decode(body or b"")
                    says = Registration(incarnation=asked["incarnation"])
                    known, made = coordinator.registry.register(asked["instance_id"], says, secret, True)
                    return Answer(200, msgspec.json.encode({"secret": made.hex() if made else None, "known": known}))
                case "DELETE", ["instances", instance]:
                    coordinator.registry.leave(instance, secret)
                    return Answer(204, b"")
                case "POST", ["fleet", "heartbeat", instance]:
                    return Answer(200, encode(coordinator.heartbeat(instance, secret, decode_heartbeat(body or b""))))
                case "POST", ["fleet", "journal" | "snapshot"]:
                    return Answer(200, encode(coordinator.take_page(body or b"", secret)))
        except UnknownInstanceError as error:
            raise RefusedError(404, str(error)) from None
        except InstanceTakenError as error:
            raise RefusedError(403, str(error)) from None
        except ProtocolError as error:
            raise RefusedError(422, str(error)) from None
        raise AssertionError(f"{method} {path}")


class Connection:
    """In the place of a link's HttpConnection."""

    def __init__(self, site: Site, fates: list[Fate], hook: Callable[[], None]) -> None:
        self._site = site
        self._fates = fates
        self._hook = hook
        self.asked = 0

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        self._hook()
        self.asked += 1
        assert self.asked < MESSAGES_MAX, "a step without an end"
        message = (method, path, body or b"", headers or {})
        fate = self._fates.pop(0) if self._fates else Fate.ARRIVES
        if fate is Fate.LOST:
            raise UnreachableError("it was lost")
        if fate is Fate.LATE:
            if path.startswith("/fleet/") and body:
                self._site.late.append(message)
            raise UnreachableError("it is late")
        if fate is Fate.CUT and body:
            if path.startswith(("/fleet/journal", "/fleet/snapshot")):
                try:
                    self._site.deliver(method, path, body[: len(body) // 2], headers or {})
                except RefusedError:
                    pass
            raise UnreachableError("it was cut")
        if fate is Fate.DOUBLED:
            try:
                self._site.deliver(*message)
            except RefusedError:
                pass
        answer = self._site.deliver(*message)
        if fate is Fate.UNANSWERED:
            raise UnreachableError("there was no answer")
        return answer

    def close(self) -> None:
        pass


class RecoveryMachine(RuleBasedStateMachine):
    @initialize(kept=st.sampled_from([4, 30, 1000]), seed=st.integers(0, 2**32))
    def start(self, kept: int, seed: int) -> None:
        self.kept = kept
        self.chooser = random.Random(seed)
        self.boots = 0
        self.busy = False
        self.fates: list[Fate] = []
        self.backend = SharedBackend()
        self.sites = [Site() for _ in range(COORDINATORS)]
        self.servers = [self._started(number) for number in range(MEMBERS)]

    def _started(self, number: int) -> Server:
        self.boots += 1
        server = Server(number, self.boots, self.backend, self.kept, self._meanwhile)
        for link, site in zip(server.links, self.sites, strict=True):
            link._http = cast(HttpConnection, Connection(site, self.fates, self._meanwhile))
        return server

    def _meanwhile(self) -> None:
        """Servers go on while a message is under way, late ones arrive, and now and then a coordinator starts again."""
        if not self.busy:
            return
        for server in self.servers:
            server.change(self.chooser)
        for site in self.sites:
            if site.late and self.chooser.random() < 0.5:
                site.arrive(self.chooser.randrange(len(site.late)))
            elif self.chooser.random() < 0.04:
                site.start()

    @rule(server=st.integers(0, MEMBERS - 1), space=st.integers(0, 1), numbers=NUMBERS)
    def store(self, server: int, space: int, numbers: list[int]) -> None:
        self.servers[server].store(space, numbers)

    @rule(server=st.integers(0, MEMBERS - 1), space=st.integers(0, 1), numbers=NUMBERS)
    def evict(self, server: int, space: int, numbers: list[int]) -> None:
        self.servers[server].cache.contents.drop(SPACES[space], [name(each) for each in numbers], force=True)

    @rule(server=st.integers(0, MEMBERS - 1), space=st.integers(0, 1), numbers=NUMBERS)
    def store_shared(self, server: int, space: int, numbers: list[int]) -> None:
        self.servers[server].store_shared(space, numbers, 100)

    @rule(server=st.integers(0, MEMBERS - 1), space=st.integers(0, 1), numbers=NUMBERS)
    def delete_shared(self, server: int, space: int, numbers: list[int]) -> None:
        self.servers[server].delete_shared(space, numbers)

    @rule(server=st.integers(0, MEMBERS - 1))
    def replace_adapter(self, server: int) -> None:
        self.servers[server].replace_adapter()

    @rule(
        server=st.integers(0, MEMBERS - 1),
        site=st.integers(0, COORDINATORS - 1),
        fates=st.lists(st.sampled_from([*Fate, Fate.ARRIVES, Fate.ARRIVES, Fate.LATE]), max_size=6),
        busy=st.booleans(),
    )
    def step(self, server: int, site: int, fates: list[Fate], busy: bool) -> None:
        self.fates[:], self.busy = fates, busy
        self.servers[server].links[site].step()
        self.fates.clear()
        self.busy = False

    @rule(site=st.integers(0, COORDINATORS - 1), which=st.integers(0, 50))
    def arrive_late(self, site: int, which: int) -> None:
        if late := self.sites[site].late:
            self.sites[site].arrive(which % len(late))

    @rule(site=st.integers(0, COORDINATORS - 1), passes=st.integers(1, 3))
    def sweep(self, site: int, passes: int) -> None:
        for _ in range(passes):
            self.sites[site].coordinator.placements.sweep()

    @rule(site=st.integers(0, COORDINATORS - 1))
    def restart_coordinator(self, site: int) -> None:
        self.sites[site].start()

    @rule(number=st.integers(0, MEMBERS - 1), leaves=st.booleans())
    def restart_member(self, number: int, leaves: bool) -> None:
        server = self.servers[number]
        if leaves:
            for link in server.links:
                if link._is_registered:
                    link._leave()
        server.end()
        self.servers[number] = self._started(number)

    @rule(site=st.integers(0, COORDINATORS - 1), seconds=st.sampled_from([1.0, 40.0]))
    def advance(self, site: int, seconds: float) -> None:
        self.sites[site].clock.advance(seconds)
        self.sites[site].coordinator._look_for_silent()

    @invariant()
    def what_has_left_is_not_found(self) -> None:
        for site in self.sites if hasattr(self, "sites") else ():
            registered = {each.instance_id for each in site.coordinator.registry.live()}
            known = {location.instance for location in site.coordinator.placements.counts()}
            assert known <= registered | {""}, "a server that has left is still found"

    @rule(now=st.integers(0, 5))
    def maybe_compare(self, now: int) -> None:
        if now == 0:
            self.compare()

    def compare(self) -> None:
        self._quiet()
        for site in self.sites:
            self._compare(site.coordinator)

    def _quiet(self) -> None:
        """Until nothing more is sent.  An id whose server has started again is free after the time limit; then listings that
        were asked of the dead are asked again."""
        for site in self.sites:
            for _ in range(len(site.late)):
                site.arrive(0)
            site.late.clear()
        for _ in range(12):
            for server in self.servers:
                for link in server.links:
                    link.step()
            for site in self.sites:
                site.clock.advance(TIMEOUT_SECONDS * 0.6)
                site.coordinator._look_for_silent()
        for site in self.sites:
            assert len(site.coordinator.registry.live()) == MEMBERS
            site.coordinator._sweep()

    def _compare(self, coordinator: Coordinator) -> None:
        placements = coordinator.placements
        hashes = b"".join(name(each) for each in range(KEYS))
        found: dict[str, set[tuple[int, bytes]]] = {server.id: set() for server in self.servers}
        shared: set[tuple[int, bytes]] = set()
        for number, space in enumerate(SPACES):
            for each, locations in enumerate(placements.lookup(space_number(space.tail), hashes)):
                for location in locations:
                    into = found[location.instance] if location.source == "l1" else shared
                    into.add((number, name(each)))
        for server in self.servers:
            assert found[server.id] == server.has(), server.id
        counts = {
            location.instance: count for location, count in placements.counts().items() if location.source == "l1"
        }
        assert counts == {server.id: len(server.has()) for server in self.servers}
        used: dict[str, int] = {}
        for key, size in self.backend.objects.items():
            used[key.space.cache_salt] = used.get(key.space.cache_salt, 0) + size
        assert shared == {(SPACES.index(key.space), key.chunk_hash) for key in self.backend.objects}
        assert coordinator.usage.by_salt() == used
        in_use = len(placements._locations) - placements._locations.count(None)
        assert in_use == len(placements._shown), "owner numbers leak"

    def teardown(self) -> None:
        if hasattr(self, "servers"):
            try:
                self.compare()
            finally:
                for server in self.servers:
                    server.end()
                for site in self.sites:
                    site.state.close()
