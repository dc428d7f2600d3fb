"""What a subscriber costs the server: CPU time, which is bounded, and memory, which is watched.

A subscriber that keeps the events it is given is noticed before the server has no memory left: now and then it is given a
copy of an event that nothing else references.  If the copy is still referenced long after, it was kept, and represents all
events since the copy before it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from random import Random
from typing import Final

from lmcache_core.contracts.events import Event

BURST_SECONDS: Final = 0.2
"""Unused time is saved up to this limit: a batch that comes after a rest is not interrupted."""
SAMPLE_SECONDS: Final = 0.25
"""Time between two samples, on average."""
QUIET_SECONDS: Final = 2.0
"""After this time without a sample, the next event is one."""
KEPT_SECONDS: Final = 60.0
"""An event that is still there after this time counts as kept: spans and batches are over by then."""
SAMPLES_MAX: Final = 512
KEPT_SAMPLES_MIN: Final = 8
"""Fewer may be chance."""


class CpuBudget:
    """Counts the CPU time of the thread that calls `settle`, and says how long it has to rest to stay within `ratio` of a
    core.  Called before and after work, so that a long rest before it counts as one burst.  One thread at a time;
    `begin` when another one takes over."""

    def __init__(
        self,
        ratio: float,
        cpu_seconds: Callable[[], float] = time.thread_time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ratio, self._cpu_seconds, self._now = ratio, cpu_seconds, now
        self._credit = BURST_SECONDS * ratio
        self.used_seconds = 0.0
        self.begin()

    def begin(self) -> None:
        """This thread is counted from now on."""
        self._cpu_before, self._before = self._cpu_seconds(), self._now()

    def settle(self) -> float:
        """Count what was used since the last time.  Returns the seconds to rest, 0 where there is nothing to make up for."""
        cpu, now = self._cpu_seconds(), self._now()
        used, passed = cpu - self._cpu_before, now - self._before
        self._cpu_before, self._before = cpu, now
        self.used_seconds += used
        self._credit = min(self._credit + passed * self._ratio - used, BURST_SECONDS * self._ratio)
        return max(0.0, -self._credit / self._ratio)


@dataclass(slots=True)
class _Sample:
    event: object
    at: float
    represents: int


class Retention:
    """`sample` belongs to the thread that delivers, everything else to any."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()  # guards _samples
        self._samples: list[_Sample] = []
        self._alone = _references(_Sample(object(), 0.0, 0))
        self._sampled_at, self._sampled_number = now(), 0
        self.next_number = 1
        """Which event should be the next sample, counting all events from 1."""
        self._kept_events = 0
        self._kept_samples = 0
        self._random = Random()  # its own: the module's belongs to the process that embeds the server

    def sample(self, event: Event, number: int) -> Event:
        """A copy to deliver in place of this event, the `number`-th of all."""
        own, now = copy(event), self._now()
        represents, seconds = number - self._sampled_number, now - self._sampled_at
        self._sampled_at, self._sampled_number = now, number
        # chance, because batches begin with the same types of events again and again
        gap = int(represents * SAMPLE_SECONDS / seconds) if seconds > 0 else represents
        self.next_number = number + 1 + self._random.randrange(2 * gap + 1)
        with self._lock:
            if len(self._samples) >= SAMPLES_MAX:
                self._thin()
            self._samples.append(_Sample(own, now, represents))
        return own

    def check(self) -> None:
        """Look at the samples that are old enough, and forget those without another reference."""
        now = self._now()
        kept_before = now - KEPT_SECONDS
        if now - self._sampled_at > QUIET_SECONDS:
            self.next_number = 0  # fewer come than did
        with self._lock:
            old = [sample for sample in self._samples if sample.at <= kept_before]
            kept = [sample for sample in old if _references(sample) > self._alone]
            self._samples = kept + [sample for sample in self._samples if sample.at > kept_before]
            self._kept_samples = len(kept)
            self._kept_events = sum(sample.represents for sample in kept)

    @property
    def kept_events(self) -> int:
        """An estimate of how many events are kept, as of the last `check`; 0 where it rests on too little."""
        return self._kept_events if self._kept_samples >= KEPT_SAMPLES_MIN else 0

    def _thin(self) -> None:
        """Half of the samples represent all of them.  The caller holds the lock."""
        pairs = zip(self._samples[::2], self._samples[1::2], strict=False)
        self._samples = [_Sample(late.event, late.at, early.represents + late.represents) for early, late in pairs]


def _references(sample: _Sample) -> int:
    return sys.getrefcount(sample.event)
