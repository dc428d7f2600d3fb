"""Eviction of one adapter: watches its usage, and deletes the victims of its policy."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import Annotated, Any, Final

from pydantic import Field

from lmcache_core import (
    Capability,
    ConfigError,
    EvictedAdapter,
    L2Eviction,
    L2EvictionContext,
    L2EvictionCounts,
    L2EvictionSettings,
    ObjectKey,
    ObjectsEvicted,
    Outcome,
    Usage,
)
from lmcache_policies.l2_eviction.contents import L2Contents
from lmcache_policies.l2_eviction.listing import L2Listing

logger = logging.getLogger(__name__)

Ratio = Annotated[float, Field(gt=0, le=1)]
NEEDED: Final = Capability.DELETE | Capability.USAGE


class WatermarkSettings(L2EvictionSettings):
    """When an adapter's objects are deleted, and which."""

    trigger_watermark: Annotated[Ratio, Field(description="Used share of the capacity at which eviction starts.")] = 0.8
    eviction_ratio: Annotated[Ratio, Field(description="Share of what is used that one eviction frees.")] = 0.2


class L2Pressure:
    """Compares usage with a watermark, cycle of eviction by cycle.  One thread.

    An adapter may count what it holds only now and then.  Who went on deleting by an old count would empty it, so after a
    cycle nothing is needed until something of that cycle shows."""

    def __init__(self, adapter: EvictedAdapter, watermark: float) -> None:
        self._adapter = adapter
        self._watermark = watermark
        self._used_before = 0
        self._stored_bytes = 0
        self._said: set[str] = set()
        self.freed_bytes = 0
        """By the cycle that began last."""

    def begin(self, usage: Usage) -> None:
        """A cycle begins, because of this usage."""
        self._used_before = usage.used_bytes
        self._stored_bytes = self.freed_bytes = 0

    def stored(self, size: int) -> None:
        """`size` bytes were added."""
        self._stored_bytes += size

    def freed(self, size: int) -> None:
        """`size` bytes were deleted."""
        self.freed_bytes += size

    def excess(self) -> Usage | None:
        """The usage, if it is beyond the watermark; otherwise None, also where it is not known."""
        usage = self._adapter.usage()
        if usage is None and self._adapter.is_learning:
            return None
        if usage is None or usage.used_bytes < 0 or not usage.capacity_bytes or usage.capacity_bytes < 0:
            self._say_once(
                "does nothing, the adapter does not say how much it holds and may hold",
                "give it a capacity, or leave out its 'eviction'",
            )
            return None
        if usage.used_bytes <= self._watermark * usage.capacity_bytes:
            return None
        if usage.used_bytes == self._used_before and self._stored_bytes < self.freed_bytes:
            self._say_once(
                "waits, what was deleted does not show in what the adapter says it holds", "its usage() has to say that"
            )
            return None
        return usage

    def _say_once(self, what: str, remedy: str) -> None:
        if what not in self._said:
            self._said.add(what)
            logger.warning("l2 eviction %s adapter=%s; %s", what, self._adapter.name, remedy)


SLICE: Final = 256
"""Objects deleted by one job, so that stores come in between."""
CHECK_SECONDS: Final = 1.0
"""How often usage is looked at without a reason, and how soon what could not be deleted is tried again."""
FAILED_SLICES_MAX: Final = 4
"""After this many slices in a row without a deletion, eviction pauses."""


@dataclass(slots=True, eq=False)
class _Event:
    """What the adapter or a listing has said, to be handled on the thread of the eviction."""

    handle: Callable[[], None]
    failed: bool = False
    """Handling it failed once."""


@dataclass(slots=True, eq=False)
class _Deletion:
    sizes: dict[int, int]
    """By number, as they were submitted: what is stored again meanwhile may have another size."""
    used_ratio: float


class WatermarkEviction(L2Eviction):
    """Beyond `watermark` of the adapter's capacity it deletes `ratio` of what is used, in the policy's order, again and
    again until it is below: each time when what was deleted shows in what the adapter says it holds.  `stored` to
    `status` are for any thread; the policy and everything else belong to the thread whose body is `run`.

    It learns of objects from stores, those included that were over time, from lookups that find them, and from a listing, and
    that an operator has deleted them; of their sizes from stores alone, so that one that was listed counts as large as others
    of its key space, or as the average.  Their places in prompts are not known here.  What is being stored or loaded is not
    deleted."""

    def __init__(self, settings: WatermarkSettings, context: L2EvictionContext) -> None:
        self._adapter, self._clock, self._events = context.adapter, context.clock, context.events
        self._watermark = settings.trigger_watermark
        self._ratio = settings.eviction_ratio
        self._pressure = L2Pressure(context.adapter, self._watermark)
        self._contents = L2Contents(context)
        self._objects = self._contents.objects
        self._listing = L2Listing(context.adapter, self) if Capability.LIST in context.adapter.capabilities else None
        self._inbox: SimpleQueue[_Event] = SimpleQueue()
        self._stopped = False
        self._victims: deque[int] = deque()
        self._deletion: _Deletion | None = None
        self._returned: set[int] = set()
        """Stored again while they were being deleted."""
        self._leaving: set[ObjectKey] = set()
        """Objects that an operator deletes, unless they were seen since that began."""
        self._stuck: set[int] = set()
        """Could not be deleted in this cycle."""
        self._goal_bytes = 0
        """The cycle is over when no more than this is used."""
        self._failed_slices = 0
        self._rest_until = 0.0
        self.counts = L2EvictionCounts()

    # --- any thread

    def stored(self, objects: Sequence[tuple[ObjectKey, int]]) -> None:
        self._inbox.put(_Event(partial(self._add_stored, objects, certain=True)))

    def may_have_stored(self, objects: Sequence[tuple[ObjectKey, int]]) -> None:
        """Objects that are not there are found out when they are deleted."""
        self._inbox.put(_Event(partial(self._add_stored, objects, certain=False)))

    def hit(self, keys: Sequence[ObjectKey]) -> None:
        self._inbox.put(_Event(lambda: self._learn(keys, None)))

    def listed(self, keys: Sequence[ObjectKey]) -> None:
        """The adapter has these, and has had them for some time."""
        self._inbox.put(_Event(partial(self._add_listed, keys)))

    def deleting(self, keys: Sequence[ObjectKey]) -> None:
        self._inbox.put(_Event(partial(self._leaving.update, keys)))

    def deleted(self, keys: Sequence[ObjectKey], gone: Sequence[ObjectKey]) -> None:
        self._inbox.put(_Event(partial(self._forget_deleted, keys, gone)))

    @property
    def waiting(self) -> int:
        """Messages that were not handled yet."""
        return self._inbox.qsize()

    def threads(self) -> Mapping[str, Callable[[], None]]:
        return {"eviction": self.run, **({"listing": self._listing.run} if self._listing else {})}

    def stop(self) -> None:
        self._stopped = True
        self._inbox.put(_Event(lambda: None))
        if self._listing:
            self._listing.stop()

    def status(self) -> dict[str, Any]:
        return {
            "trigger_watermark": self._watermark,
            "eviction_ratio": self._ratio,
            "known_objects": len(self._objects),
            "known_bytes": self._objects.known_bytes,
            "deleting": len(deletion.sizes) if (deletion := self._deletion) else 0,
            **asdict(self.counts),
            "listing": self._listing.state if self._listing else "not offered",
        }

    # --- on the thread of the eviction

    def run(self) -> None:
        self._victims.clear()  # it may have failed with them
        while not self._stopped:
            self.cycle()
            try:
                event = self._inbox.get(timeout=None if self._deletion else CHECK_SECONDS)
            except Empty:
                continue
            self._handle(event)

    def cycle(self) -> None:
        """Handle everything that waits, then delete what is to be deleted."""
        while not self._inbox.empty():
            self._handle(self._inbox.get())
        self._go_on()

    def _handle(self, event: _Event) -> None:
        try:
            event.handle()
        except BaseException:
            # Once more, after what waits: an object that is not known would never be deleted.
            if event.failed:
                self._deletion = None
            else:
                event.failed = True
                self._inbox.put(event)
            raise

    def _go_on(self) -> None:
        while self._deletion is None:
            if self._victims:
                self._delete_some()
            elif not self._begin_cycle():
                return

    def _add_stored(self, objects: Sequence[tuple[ObjectKey, int]], certain: bool) -> None:
        if certain:
            self._pressure.stored(sum(size for _, size in objects))
        for (_, size), group in groupby(objects, lambda item: (item[0].space, item[1])):
            self._learn([key for key, _ in group], size)

    def _add_listed(self, keys: Sequence[ObjectKey]) -> None:
        self._learn([key for key in keys if self._objects.find(key) < 0], None)

    def _forget_deleted(self, keys: Sequence[ObjectKey], gone: Sequence[ObjectKey]) -> None:
        self._forget(self._leaving.intersection(gone))
        self._leaving.difference_update(keys)

    def _learn(self, keys: Sequence[ObjectKey], size: int | None) -> None:
        if self._leaving:
            self._leaving.difference_update(keys)
        known, replaced = self._contents.learn(keys, size)
        self._stuck.update(replaced)  # whatever has the number next was not named by the policy
        if self._deletion is not None and size is not None:
            self._returned.update(known, replaced)

    def _forget(self, keys: Iterable[ObjectKey]) -> None:
        """An operator has deleted these.  For what is being deleted here, too, that deletion says so."""
        own = self._deletion.sizes if self._deletion else ()
        numbers = [number for key in keys if (number := self._objects.find(key)) >= 0 and number not in own]
        self._stuck.update(numbers)  # whatever has the number next was not named by the policy
        self._contents.forget(numbers)

    # --- making free space

    def _begin_cycle(self) -> bool:
        """Ask for victims where free space is needed.  False: nothing is to be done now."""
        now = self._clock.monotonic()
        if now < self._rest_until or not self._adapter.answers or (usage := self._pressure.excess()) is None:
            return False
        self._pressure.begin(usage)
        wanted = max(1, int(usage.used_bytes * self._ratio))
        self._goal_bytes = usage.used_bytes - wanted
        self._stuck.clear()
        self._failed_slices = 0
        busy = self._busy()
        self._victims.extend(self._contents.victims(wanted, lambda number: self._may_evict(number, busy)))
        if not self._victims:
            self._rest_until = now + CHECK_SECONDS
        return bool(self._victims)

    def _busy(self) -> set[int]:
        return {self._objects.find(key) for key in self._adapter.in_use()}

    def _may_evict(self, number: int, busy: set[int]) -> bool:
        return self._objects.is_known(number) and number not in busy and number not in self._stuck

    def _delete_some(self) -> None:
        usage = self._adapter.usage()
        if usage is None or not usage.capacity_bytes or usage.used_bytes <= self._goal_bytes or self._is_futile():
            self._victims.clear()  # sizes are estimates where objects were listed, and others may delete, too
            self._end_cycle()
            return
        busy = self._busy()
        numbers = [self._victims.popleft() for _ in range(min(SLICE, len(self._victims)))]
        numbers = [number for number in numbers if self._may_evict(number, busy)]
        if not numbers:
            self._end_cycle()
            return
        self._returned.clear()
        deletion = _Deletion(
            {number: self._objects.size(number) for number in numbers}, usage.used_bytes / usage.capacity_bytes
        )
        keys = [self._objects.key(number) for number in numbers]
        self._deletion = deletion
        self._adapter.delete_soon(
            keys, lambda outcomes: self._inbox.put(_Event(lambda: self._note_deleted(deletion, outcomes)))
        )

    def _note_deleted(self, deletion: _Deletion, outcomes: Sequence[Outcome]) -> None:
        by_outcome: dict[Outcome, list[int]] = {}
        for number, outcome in zip(deletion.sizes, outcomes, strict=True):
            if self._objects.is_known(number):
                by_outcome.setdefault(outcome, []).append(number)
        evicted, gone = by_outcome.pop(Outcome.DONE, []), by_outcome.pop(Outcome.MISSING, [])
        refused = by_outcome.pop(Outcome.REJECTED, [])
        failed = [number for numbers in by_outcome.values() for number in numbers]
        freed = sum([deletion.sizes[number] for number in evicted])
        away = [number for number in (*evicted, *gone) if number not in self._returned]
        self._contents.forget(away)
        self._stuck.update(refused, failed, away)
        self._pressure.freed(freed)
        self._failed_slices = self._failed_slices + 1 if failed and not evicted else 0
        self.counts.evicted += len(evicted)
        self.counts.evicted_bytes += freed
        self.counts.gone += len(gone)
        self.counts.refused += len(refused)
        self.counts.failed += len(failed)
        self._deletion = None
        if evicted:
            self._events.publish(ObjectsEvicted(self._adapter.name, len(evicted), freed, deletion.used_ratio))
        self._end_cycle()

    def _is_futile(self) -> bool:
        """True where the adapter does not answer, or fails repeatedly."""
        return not self._adapter.answers or self._failed_slices >= FAILED_SLICES_MAX

    def _end_cycle(self) -> None:
        """If that was the last slice and nothing could be deleted, or the adapter fails: not again at once."""
        if not self._victims and (not self._pressure.freed_bytes or self._is_futile()):
            self._rest_until = self._clock.monotonic() + CHECK_SECONDS


def open_watermark(settings: WatermarkSettings, context: L2EvictionContext) -> WatermarkEviction:
    """Raises ConfigError where the adapter cannot delete or does not know what it holds."""
    adapter = context.adapter
    if missing := NEEDED & ~adapter.capabilities:
        words = " and ".join(str(flag.name) for flag in missing)
        raise ConfigError(
            f"adapter '{adapter.name}' cannot evict: it does not declare {words}; leave out its 'eviction'"
        )
    return WatermarkEviction(settings, context)
