"""Where a coordinator is in one source's journal: which pages it applies, and which number it awaits next.  Pure; one thread.

A snapshot is made while its source changes.  Its pages, and then the journal from `begins_at` on, are what the source has,
because for each key the last change decides: applying one that a page has already does nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from lmcache_fleet.messages import JournalPage, SnapshotPage


class Doing(Enum):
    APPLY = "apply"
    """Apply the page's keys from `skip` on."""
    NOTHING = "nothing"
    """It was applied before, or it belongs to a snapshot that was superseded."""
    GAP = "gap"
    """Keys in front of the page are missing.  Nothing is applied."""
    BEGIN = "begin"
    """The first page of a snapshot: apply it to a new generation, and drop an unfinished one."""
    ADD = "add"
    """A further page of the snapshot: apply it to the open generation."""
    COMPLETE = "complete"
    """The last page: apply it to the open generation, which then replaces the one before."""
    WHOLE = "whole"
    """The first page and the last: BEGIN and COMPLETE in one."""


class Step(NamedTuple):
    doing: Doing
    skip: int = 0
    """Keys at the front of the page that were applied before."""


class Cursor:
    """Position in one source of one incarnation of a member."""

    def __init__(self) -> None:
        self.next: int | None = None
        """Number of the key that is awaited.  None: nothing is known, send a snapshot, or the journal from 0 on."""
        self.gaps = 0
        """Journal pages that were refused because keys in front of them are missing."""
        self._snapshot = -1
        """The newest one that was started."""
        self._page: int | None = None
        """Number of its page that is awaited; None: it is complete, or there is none."""

    def journal(self, page: JournalPage) -> Step:
        """The caller does what the step says."""
        expected = self.next or 0
        if page.first > expected:
            self.gaps += 1
            return Step(Doing.GAP)
        if self.next is None and page.first == 0:
            self.next = 0
        if page.end <= expected:
            return Step(Doing.NOTHING)
        self.next = page.end
        return Step(Doing.APPLY, expected - page.first)

    def skip_to(self, number: int) -> None:
        """What is missing in front of this number is given up: it is found in another way."""
        self.gaps += self.next is not None
        self.next = number

    def snapshot(self, page: SnapshotPage) -> Step:
        """The caller does what the step says.  A page that is not the awaited one has no effect: the member learns from the
        next reply that its snapshot is not complete, and sends another."""
        is_older = self.next is not None and page.begins_at < self.next
        if page.page == 0 and page.snapshot > self._snapshot and not is_older:
            self._snapshot, self._page = page.snapshot, 0
        if page.snapshot != self._snapshot or page.page != self._page or is_older:
            return Step(Doing.NOTHING)
        if not page.last:
            self._page += 1
            return Step(Doing.BEGIN if page.page == 0 else Doing.ADD)
        self.next, self._page = page.begins_at, None
        return Step(Doing.WHOLE if page.page == 0 else Doing.COMPLETE)
