"""What is wrong with a fleet, as its coordinator sees it: one list, which `/conditions`, the dashboard and the log read."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lmcache_coordinator.eviction import WAITED_INTERVALS
from lmcache_core import ActiveCondition, Clock, Condition, Severity

if TYPE_CHECKING:
    from lmcache_coordinator.coordinator import Coordinator

logger = logging.getLogger(__name__)

RECENT_SECONDS: Final = 60.0
"""For which something that happened counts as a condition of now."""
_NAMES_SHOWN: Final = 3
_LEVELS: Final = {
    Severity.INFO: logging.INFO,
    Severity.WARNING: logging.WARNING,
    Severity.CRITICAL: logging.ERROR,
}


class Conditions:
    """Safe from any thread."""

    def __init__(self, coordinator: Coordinator, clock: Clock) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._looking = threading.Lock()  # guards the two below
        self._grown: dict[str, tuple[int, float]] = {}
        """Of counters: the last value, and when it was seen to grow."""
        self._active: dict[tuple[str, str], ActiveCondition] = {}

    def active(self) -> tuple[ActiveCondition, ...]:
        """Those of now, the most severe first, then the oldest."""
        self.look()
        order = list(reversed(Severity))
        return tuple(sorted(self._active.values(), key=lambda each: (order.index(each.condition.severity), each.since)))

    def look(self) -> None:
        """Find out what is wrong now, and log what starts and ends."""
        with self._looking:
            self._counted: dict[str, tuple[int, float]] = {}
            found = {(each.name, each.subject): each for each in self._found()}
            self._grown = self._counted  # without those of instances that have left
            before = self._active
            now = self._clock.wall_ns() / 1e9
            self._active = {
                key: ActiveCondition(each, before[key].since if key in before else round(now, 3))
                for key, each in found.items()
            }
        for key in found.keys() - before.keys():
            added = found[key]
            logger.log(
                _LEVELS[added.severity],
                "condition began name=%s subject=%s severity=%s reason=%r remedy=%r",
                added.name,
                added.subject or "coordinator",
                added.severity.value,
                added.reason,
                added.remedy,
            )
        for key in before.keys() - found.keys():
            logger.info(
                "condition ended name=%s subject=%s lasted_seconds=%.1f",
                key[0],
                key[1] or "coordinator",
                now - before[key].since,
            )

    def _found(self) -> Iterator[Condition]:
        yield from self._of_state()
        yield from self._of_members()
        yield from self._of_quotas()
        yield from self._of_journals()

    def _of_state(self) -> Iterator[Condition]:
        if fault := self._coordinator.leadership.state_fault:
            yield Condition(
                "state_unavailable",
                Severity.WARNING,
                f"the state does not answer: no quota is read or set, nothing is evicted, no new server can register: {fault}",
                "Bring the store that --state names back; directory, usage and servers go on meanwhile.",
                "state",
            )

    def _of_members(self) -> Iterator[Condition]:
        live = self._coordinator.registry.live()
        if not live:
            yield Condition(
                "no_members",
                Severity.INFO,
                "no server is registered",
                "Start servers with --coordinator-url and this coordinator's address.",
            )
        families = self._coordinator.families.of()
        sizes: dict[str, list[str]] = {}
        kinds: dict[str, list[str]] = {}
        for each in live:
            name, said = each.instance_id, each.says.metadata.get("chunk_tokens")
            if name in families:
                family, vector = families[name]
                said = family.chunk_tokens
                seed = f", seed {vector[:8]}" if vector else ""
                kinds.setdefault(f"{said} tokens, {family.chain.name.lower()}{seed}", []).append(name)
            if said is not None:
                sizes.setdefault(f"{str(said)[:20]} tokens", []).append(name)
        differ = kinds if len(kinds) > 1 else sizes
        if len(differ) > 1:
            parts = "; ".join(f"{kind}: {_some(names)}" for kind, names in sorted(differ.items()))
            yield Condition(
                "members_differ",
                Severity.WARNING,
                f"servers cut or hash chunks differently, and find nothing of each other: {parts}",
                "Give all of them the same --chunk-size, --hash-algorithm and PYTHONHASHSEED.",
            )

    def _of_quotas(self) -> Iterator[Condition]:
        quotas, usage = self._coordinator.quotas, self._coordinator.usage
        if not quotas.last.were_set:
            yield Condition(
                "no_quota_was_set",
                Severity.INFO,
                "no quota and no default was ever set, or the state that had them was lost: nothing is evicted",
                "Set one: `lmcache quota set`, or --default-quota-gb. Where the state was lost, first exempt salts without a "
                'quota, or they lose everything: PUT /quota/config with {"default_limit_gb": null}.',
                "quotas",
            )
        elif self._coordinator.registry.live() and not usage.by_salt() and not self._coordinator.journals.backends():
            yield Condition(
                "no_usage_data",
                Severity.WARNING,
                "quotas are set, but no server reports what it stores in shared L2: they have no effect",
                'Start servers with --coordinator-l2-event-reporting, and give shared adapters "shared": true.',
                "quotas",
            )
        eviction = self._coordinator.eviction
        if self._is_growing("sent again", eviction.sent_again) or eviction.ignored >= WAITED_INTERVALS:
            yield Condition(
                "objects_not_deleted",
                Severity.WARNING,
                "objects over quota were not deleted by the servers that were asked to, and are sent again",
                "See the logs of the servers, and whether the shared backend takes deletes.",
                "eviction",
            )

    def _of_journals(self) -> Iterator[Condition]:
        for backend in self._coordinator.journals.incomplete():
            yield Condition(
                "backend_not_listed",
                Severity.INFO,
                "something of what it has may not be known: a server is asked to list it",
                "If this stays, see whether a server that uses it has its adapter, and whether the adapter can list.",
                f"backend {backend.name}",
            )
        for instance, lags in self._coordinator.journals.lags().items():
            if self._is_growing(f"gaps {instance}", sum(each.gaps for each in lags)):
                yield Condition(
                    "journal_gaps",
                    Severity.INFO,
                    "messages of the last minute did not follow each other; what was missing is sent again",
                    "If this stays, look at the network between this server and the coordinator.",
                    f"instance {instance}",
                )
        for instance, share in self._coordinator.stale.high().items():
            yield Condition(
                "directory_stale",
                Severity.INFO,
                f"peers did not get {share.stale} of {share.asked} objects that the directory says it has in L1",
                "It is asked for a snapshot. If this stays, see its L1 and --p2p-max-leased-ratio.",
                f"instance {instance}",
            )
        if self._coordinator.listing.is_missing:
            yield Condition(
                "posted_events_lost",
                Severity.INFO,
                "batches of POST /l2/events are missing, or not recorded because their numbers came before, or shared L2 was "
                "not listed: usage may be wrong until it is",
                "If this stays, see whether a server that posts has registered its admin port and --member-token-file has its "
                "token; or let servers join with lmcache-fleet-member, which sends again what was lost.",
                "posted events",
            )

    def _is_growing(self, counter: str, value: int) -> bool:
        now = self._clock.monotonic()
        before, at = self._grown.get(counter, (0, -RECENT_SECONDS))
        if value > before:
            at = now
        self._counted[counter] = (value, at)
        return value > 0 and now - at < RECENT_SECONDS


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(sorted(names)[:_NAMES_SHOWN]) + more
