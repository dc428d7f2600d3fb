"""Allocates L1's pages ahead of need, so that a store does not pay for them.

A slab of 64 MiB takes some 15 ms to allocate and clear.  One thread does that: first what the server was told to have at
the start, then as much as lies ahead of what is in use.  Stores go on meanwhile on what is there, and allocate for
themselves only where they are faster than this thread.
"""

from __future__ import annotations

import logging
import threading

from lmcache_core.contracts.clock import Clock
from lmcache_core.l1.arena import Arena

logger = logging.getLogger(__name__)

STEP_BYTES = 16 << 20
"""Allocated at a time: the longest that a store waits for this thread, since the kernel lets one at a time."""
AHEAD_BYTES = 256 << 20
_AHEAD_SHARE = 8
"""Of a small arena no more than one part in so many is allocated ahead."""
RETRY_SECONDS = 10.0
"""How soon memory that could not be had is tried again."""
_PROGRESS_PERCENT, _PROGRESS_SECONDS = 10, 1.0
"""A line for every so many percent of the start, and no more often than this."""


class Growth:
    """`run` is the thread's body; `stop` ends it from any thread.  It stops before the arena is closed."""

    def __init__(self, arena: Arena, start_bytes: int, clock: Clock) -> None:
        self._arena = arena
        self._start_bytes = min(start_bytes, arena.size_bytes)
        self._ahead_bytes = min(AHEAD_BYTES, arena.size_bytes // _AHEAD_SHARE)
        self._clock = clock
        self._asked = threading.Event()
        self._stop = False
        self._is_full = False
        arena.call_when_asked(self._asked.set)

    @property
    def is_full(self) -> bool:
        """The memory that was wanted last could not be had."""
        return self._is_full

    def run(self) -> None:
        self._fill_start()
        while not self._stop:
            self._asked.wait(RETRY_SECONDS if self._is_full else None)
            self._asked.clear()
            self._fill(max(self._start_bytes, self._arena.asked_end + self._ahead_bytes))

    def stop(self) -> None:
        self._stop = True
        self._asked.set()

    def _fill_start(self) -> None:
        """What was promised for the start, with its progress in the log."""
        begun = shown = self._clock.monotonic()
        percent = 0
        while not self._stop and self._grow(self._start_bytes):
            now, done = self._clock.monotonic(), min(self._arena.backed_bytes, self._start_bytes)
            reached = done * 100 // self._start_bytes
            if reached < 100 and reached >= percent + _PROGRESS_PERCENT and now >= shown + _PROGRESS_SECONDS:
                percent, shown = reached, now
                self._show("l1 is being allocated", done, now - begun)
        if self._start_bytes and not self._stop and not self._is_full:
            self._show("l1 is allocated", self._start_bytes, self._clock.monotonic() - begun)
        self._asked.set()

    def _fill(self, end: int) -> None:
        while not self._stop and self._grow(end):
            pass

    def _grow(self, end: int) -> bool:
        """One step.  False when there is nothing left to do, or nothing left to have."""
        grown = self._arena.grow(end, STEP_BYTES)
        self._is_full = grown is None
        return bool(grown)

    def _show(self, what: str, done_bytes: int, seconds: float) -> None:
        gib = done_bytes / 2**30
        logger.info(
            "%s percent=%d gib=%.2f gib_per_second=%.1f",
            what,
            done_bytes * 100 // self._start_bytes,
            gib,
            gib / max(seconds, 1e-6),
        )
