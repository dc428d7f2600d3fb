"""What adapters say that they have for prefetches, and keep for them until they are told otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.events import L2LookupCompleted, Publisher
from lmcache_core.controllers.adapter_port import AdapterPort
from lmcache_core.controllers.prefetch_request import Prefetch
from lmcache_core.jobs.inbox import Inbox
from lmcache_core.model.bitmap import Bitmap
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import Outcome


@dataclass(slots=True, eq=False)
class LookupJob:
    """What one adapter was asked whether it has."""

    prefetch: Prefetch
    port: AdapterPort
    keys: Sequence[ObjectKey]
    number: int
    begun: float
    taken: bool = False
    """What the adapter keeps is accounted for: with the prefetch, or let go."""

    def found(self, outcomes: Sequence[Outcome]) -> list[ObjectKey]:
        """What the adapter has, and keeps until it is told otherwise."""
        pairs = zip(self.keys, outcomes, strict=False)
        return [key for key, outcome in pairs if outcome is Outcome.DONE]


class Lookups:
    """Belongs to the prefetch controller's thread."""

    def __init__(self, inbox: Inbox[Any], clock: Clock, events: Publisher) -> None:
        self._inbox = inbox
        self._clock = clock
        self._events = events
        self._number = 0

    def submit(self, prefetch: Prefetch, ports: Iterable[AdapterPort]) -> None:
        """Ask each of these for what the prefetch wants."""
        prefetch.asked = set(ports)
        keys = [wanted.key for wanted in prefetch.wanted]
        now = self._clock.monotonic()
        for port in ports:
            self._number += 1
            port.submit_lookup(keys, self._inbox, LookupJob(prefetch, port, keys, self._number, now))

    def answered(self, job: LookupJob, outcomes: Sequence[Outcome]) -> bool:
        """True when nobody else is waited for, and the prefetch is to be planned."""
        prefetch, port = job.prefetch, job.port
        found = job.found(outcomes)
        job.taken = True
        if self._events.wants(L2LookupCompleted):
            seconds = self._clock.monotonic() - job.begun
            self._events.publish(
                L2LookupCompleted(port.name, job.number, prefetch.request_id, len(job.keys), len(found), seconds)
            )
        if prefetch.answered or prefetch.planned or port not in prefetch.asked:
            port.unpin(found)
            return False
        prefetch.pinned[port] = found
        prefetch.found[port] = Bitmap(
            len(outcomes), [i for i, outcome in enumerate(outcomes) if outcome is Outcome.DONE]
        )
        prefetch.asked.discard(port)
        return not prefetch.asked

    def go_without(self, prefetch: Prefetch, port: AdapterPort) -> bool:
        """It has not been said yet what is loaded from where, and will be without this adapter.  True when that was the
        last one that was waited for."""
        prefetch.found.pop(port, None)
        port.unpin(prefetch.pinned.pop(port, []))
        was_asked = port in prefetch.asked
        prefetch.asked.discard(port)
        return was_asked and not prefetch.asked

    def give_up(self, job: LookupJob, outcomes: Sequence[Outcome]) -> None:
        """The answer could not be handled: nobody will unpin what it found."""
        if not job.taken:
            job.port.unpin(job.found(outcomes))

    def unpin_if_done(self, prefetch: Prefetch) -> None:
        """When nobody reads for it any more, the adapters may let go of what they kept."""
        if prefetch.answered and not prefetch.loading:
            while prefetch.pinned:
                port, keys = prefetch.pinned.popitem()
                port.unpin(keys)
