"""What became of the objects that were to go to one adapter."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple


class StoreAccount(NamedTuple):
    """Objects since the start, all of one moment:

    admitted == stored + failed + dropped + waiting + in_flight
    """

    admitted: int
    stored: int
    failed: int
    """The adapter said so, did not answer in time, or the server could not hand them over."""
    dropped: int
    waiting: int
    in_flight: int
    """Handed to the adapter, and not answered."""
    merged: int
    """Not admitted: the same object was on its way to this adapter already."""
    backlog_bytes: int
    """Waiting and in flight."""
    failed_by_outcome: Mapping[str, int]
    """`rejected` where the adapter has no room."""
    dropped_by_reason: Mapping[str, int]

    @property
    def adds_up(self) -> bool:
        return self.admitted == self.stored + self.failed + self.dropped + self.waiting + self.in_flight


class StoreLedger:
    """Written by the store controller, read by anybody: each change is complete when it is seen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all below
        self._stored = 0
        self._failed: Counter[str] = Counter()
        self._waiting = 0
        self._in_flight = 0
        self._merged = 0
        self._admitted = 0
        self._backlog_bytes = 0
        self._dropped: Counter[str] = Counter()

    @property
    def backlog_bytes(self) -> int:
        return self._backlog_bytes

    def admit(self, objects: int, size: int, merged: int) -> None:
        """So many more, of so many bytes, wait; others were on their way already."""
        with self._lock:
            self._admitted += objects
            self._waiting += objects
            self._backlog_bytes += size
            self._merged += merged

    def submit(self, objects: int) -> None:
        """So many of those that wait are on their way."""
        with self._lock:
            self._waiting -= objects
            self._in_flight += objects

    def settle(self, stored: int, failed: Mapping[str, int], size: int) -> None:
        """So many of those on their way, of so many bytes, have their outcome: they are stored, or failed in these ways."""
        with self._lock:
            self._in_flight -= stored + sum(failed.values())
            self._stored += stored
            self._failed.update(failed)
            self._backlog_bytes -= size

    def drop(self, objects: int, size: int, reason: str) -> None:
        """So many of those that wait, of so many bytes, will not go."""
        with self._lock:
            self._waiting -= objects
            self._dropped[reason] += objects
            self._backlog_bytes -= size

    def account(self) -> StoreAccount:
        with self._lock:
            return StoreAccount(
                self._admitted,
                self._stored,
                self._failed.total(),
                self._dropped.total(),
                self._waiting,
                self._in_flight,
                self._merged,
                self._backlog_bytes,
                dict(self._failed),
                dict(self._dropped),
            )
