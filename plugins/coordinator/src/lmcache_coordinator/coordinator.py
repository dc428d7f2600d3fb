"""The coordinator, put together: what members send in, what operators ask, and the loops."""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from lmcache_coordinator.conditions import Conditions
from lmcache_coordinator.eviction import Eviction
from lmcache_coordinator.http_deletes import HttpDeletes
from lmcache_coordinator.http_listing import HttpListing
from lmcache_coordinator.journals import Journals
from lmcache_coordinator.leadership import Leadership
from lmcache_coordinator.models import AllSalts, SaltStatus, gigabytes
from lmcache_coordinator.pins import Pins
from lmcache_coordinator.posted_events import PostedEvents
from lmcache_coordinator.quotas import Quotas, QuotaTable
from lmcache_coordinator.registry import Registration, Registry
from lmcache_coordinator.routing import Families, Router
from lmcache_coordinator.settings import CoordinatorSettings
from lmcache_coordinator.stale_entries import StaleEntries
from lmcache_coordinator.usage import SharedUsage
from lmcache_coordinator.views import Views
from lmcache_core import Clock, EvictionPolicy, KeySpace, salt_text
from lmcache_fleet.messages import (
    L1,
    NOTHING,
    Command,
    Freeze,
    FullSync,
    Heartbeat,
    KeyOwner,
    Lookup,
    LookupReply,
    Page,
    Reply,
    decode_page,
)
from lmcache_fleet.placements import Location, Placements, space_number
from lmcache_fleet.state import CoordinatorState, StateUnavailableError

logger = logging.getLogger(__name__)

FREEZE_SECONDS: Final = 3600.0
"""The member has a limit of its own."""
SWEEP_SECONDS: Final = 1.0
CONDITION_SECONDS: Final = 1.0
SWEEP_PAUSE_SECONDS: Final = 0.001
"""Between two steps of a sweep, so that lookups get the locks of parts."""
SECRETS_SECONDS: Final = 3600.0
"""Between two looks for secrets that no server needs."""
FOLLOW_SECONDS: Final = 1.0
FOLLOW_PAUSE_SECONDS: Final = 0.5
"""Between two waits for changes of the state, so that one that is changed all the time costs little."""


class Coordinator:
    """Its methods are safe from any thread."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        state: CoordinatorState,
        new_policy: Callable[[], EvictionPolicy],
        clock: Clock,
        views: Views | None = None,
    ) -> None:
        """Raises StateUnavailableError."""
        self.views = views or Views({})
        self.settings = settings
        self.placements = Placements()
        self.views.begin(self._is_there)
        self.usage = SharedUsage(new_policy, clock, settings.instance_timeout)
        self.quotas = Quotas(state, settings.default_quota_bytes, "default_quota_gb" in settings.model_fields_set)
        self.journals = Journals(
            self.placements, self.usage, clock, settings.enable_startup_resync, settings.instance_timeout, self.views
        )
        self.posted = PostedEvents(self.usage)
        self.registry = Registry(state, clock, settings.instance_timeout, self._joined, self._gone)
        self.pins = Pins(state)
        self.families = Families()
        self.stale = StaleEntries(clock)
        self.router = Router(self.placements, self.journals.spaces.of, self.journals.sources)
        self.leadership = Leadership(state, _seconds_since_boot)
        self.eviction = Eviction(
            self.usage,
            self.quotas,
            self.registry,
            self.pins,
            settings.eviction_ratio,
            settings.trigger_watermark,
            lambda: self.leadership.is_leader,
            self.journals.users,
            HttpDeletes(settings.member_token_file, lambda: self.leadership.is_leader).begin,
        )
        self.listing = HttpListing(
            settings, self.usage, self.posted, self.registry, clock, lambda: not self._stopping.is_set()
        )
        self.conditions = Conditions(self, clock)
        self.started_at = clock.wall_ns() / 1e9
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def take_page(self, data: bytes, secret: bytes | None, check: Callable[[str], None] = lambda _: None) -> Reply:
        """`check` is called with the instance, and raises what it likes.  Raises ProtocolError, UnknownInstanceError,
        InstanceTakenError, TooManyOwnersError."""
        return self.take(decode_page(data), secret, check)

    def is_quick(self, page: Page) -> bool:
        """Does `take` wait for nothing now, and call no plugin?"""
        return not (page.shared or self.views.see(page) or self.journals.is_busy(page.instance))

    def take(self, page: Page, secret: bytes | None, check: Callable[[str], None]) -> Reply:
        check(page.instance)
        self.registry.heard(page.instance, secret, page.incarnation)
        return Reply(dict(self.journals.take(page)), self._commands(page.instance), self.views.types)

    def heartbeat(self, instance: str, secret: bytes | None, says: Heartbeat = NOTHING) -> Reply:
        """Raises UnknownInstanceError, InstanceTakenError."""
        self.registry.heard(instance, secret)
        for source in says.not_deleted:
            self.eviction.failed(instance, source)
        if says.sources is not None:
            self.journals.keep(instance, says.sources)
        return Reply(dict(self.journals.expects(instance)), self._commands(instance), self.views.types)

    def lookup(self, asked: Lookup) -> LookupReply:
        """For peers: which registered servers have each key in a place of their own.  Takes in what the peer has found."""
        for each in asked.found:
            if self.registry.find(each.instance) is not None:
                self.stale.heard(each.instance, each.asked, each.stale)
        found = [self.placements.find(space_number(part.space), part.hashes) for part in asked.parts]
        indices: dict[Location, int] = {}
        key_owners = list[KeyOwner]()
        numbers: dict[int, int] = {}
        """By owner: its index in the reply.  Owners that are not there are not registered."""
        for owner in {owner for _, owners in found for owner in owners}:
            location = self.placements.location(owner)
            if location is None or (instance := self.registry.find(location.instance)) is None:
                continue
            numbers[owner] = indices.setdefault(location, len(indices))
            if len(indices) > len(key_owners):
                key_owners.append(_key_owner(location, instance.says))
        ends, places = array("I"), array("H")
        for found_ends, owners in found:
            for begin, end in pairwise((0, *found_ends)):
                places.extend({numbers[owner] for owner in owners[begin:end] if owner in numbers})
                ends.append(len(places))
        return LookupReply(tuple(key_owners), ends.tobytes(), places.tobytes())

    def _is_there(self, space: KeySpace, hashes: bytes) -> Sequence[bool]:
        ends, _ = self.placements.find(space_number(space.tail), hashes)
        return [end > begin for begin, end in pairwise((0, *ends))]

    def _commands(self, instance: str) -> tuple[Command, ...]:
        commands: list[Command] = [*self.journals.to_list(instance), *self.eviction.commands(instance)]
        wants_sync = self.stale.wants_sync(instance)
        if wants_sync:
            commands.append(FullSync(L1))
        if self.settings.sync_mode == "freeze" and (wants_sync or not self.journals.is_synced(instance)):
            commands.append(Freeze(FREEZE_SECONDS))
        return tuple(commands)

    def salt_status(self, salt: str) -> SaltStatus:
        """Raises StateUnavailableError."""
        return _salt_status(salt, self.usage.by_salt().get(salt, 0), self.quotas.read())

    def all_salts(self) -> AllSalts:
        """Raises StateUnavailableError."""
        table, used = self.quotas.read(), self.usage.by_salt()
        salts = [_salt_status(salt, used.get(salt, 0), table) for salt in sorted({*used, *table.limits})]
        return AllSalts(total_gb=gigabytes(sum(used.values())), by_cache_salt=salts)

    def start(self) -> None:
        settings = self.settings
        self._thread("leadership", lambda: self.leadership.run(self._stopping))
        self._loop("quotas", FOLLOW_PAUSE_SECONDS, lambda: self.quotas.follow(FOLLOW_SECONDS))
        self._loop("health", settings.health_check_interval, self._look_for_silent)
        self._loop("secrets", SECRETS_SECONDS, lambda: self.registry.forget_absent(self.leadership.is_leader))
        self._loop("listing", settings.resync_poll_interval, self.listing.look)
        self._loop("eviction", settings.eviction_check_interval, self._evict)
        self._loop("conditions", CONDITION_SECONDS, self.conditions.look)
        self._loop("sweep", SWEEP_SECONDS, self._sweep)

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(5.0)

    def _loop(self, name: str, seconds: float, work: Callable[[], object]) -> None:
        if seconds == 0:
            return

        def run() -> None:
            while not self._stopping.wait(seconds):
                try:
                    work()
                except StateUnavailableError as error:  # a condition says so, too
                    logger.debug("loop waits for the state name=%s error=%s", name, error)
                except Exception:  # the loop goes on
                    logger.exception("loop failed name=%s", name)

        self._thread(name, run)

    def _thread(self, name: str, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name=f"coordinator-{name}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _look_for_silent(self) -> None:
        for name in self.registry.drop_silent():
            logger.warning(
                "instance dropped: no heartbeat for %.0f s instance=%s", self.settings.instance_timeout, name
            )

    def _evict(self) -> None:
        self.pins.refresh()
        self.eviction.settle()
        self.eviction.run()

    def _sweep(self) -> None:
        self.journals.forget_unused()
        while self.placements.sweep() and not self._stopping.wait(SWEEP_PAUSE_SECONDS):
            pass

    def _joined(self, instance: str, incarnation: str) -> None:
        self.journals.join(instance, incarnation)
        self.posted.forget(instance)

    def _gone(self, instance: str) -> None:
        self.journals.forget(instance)
        self.posted.forget(instance)
        self.families.forget(instance)
        self.stale.forget(instance)


def _key_owner(location: Location, says: Registration) -> KeyOwner:
    return KeyOwner(
        instance=location.instance,
        source=location.source,
        worker=location.worker,
        ip=says.ip,
        http_port=says.http_port,
        mq_port=says.mq_port,
        p2p_advertised_url=says.p2p_advertised_url,
    )


def _salt_status(salt: str, used_bytes: int, table: QuotaTable) -> SaltStatus:
    limit = table.limit(salt)
    return SaltStatus(
        cache_salt=salt_text(salt),
        quota_limit_gb=None if limit is None else gigabytes(limit),
        quota_exists=salt in table.limits,
        usage_gb=gigabytes(used_bytes),
    )


def _seconds_since_boot() -> float:
    """Goes on while the process is stopped or the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
