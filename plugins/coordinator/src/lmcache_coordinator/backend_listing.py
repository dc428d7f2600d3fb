"""When a shared backend is listed, because something may be missing of what is known of it, and by which member."""

from __future__ import annotations

import math
from typing import Final

from lmcache_fleet.messages import SnapshotPage

ASKED_SECONDS: Final = 10.0
"""Seconds until a listing that did not start is requested again, of any member."""
PAGE_SECONDS: Final = 60.0
"""Until one is that does not go on."""


class BackendListing:
    """Whether a shared backend is to be listed.  Not synchronised."""

    def __init__(self, rest_seconds: float) -> None:
        """`rest_seconds`: at least, between the end of a listing and the next one."""
        self._rest = rest_seconds
        self._wanted = 0
        self._begun = 0
        """Of what was wanted, what the listing that is under way finds."""
        self._done = 0
        self._asked = ""
        """The member that was asked."""
        self._lister = ("", 0)
        """Whose listing is under way, and its number.  One that began before is of no use any more."""
        self._begun_at = 0.0
        self._ask_at = 0.0
        self._again_at = math.inf

    def want(self, again_at: float = math.inf) -> None:
        """Something is missing of what is known of the backend.  A listing that is under way may be past it.  `again_at`: when
        it is to be listed once more, because reports were lost, and others may bring what is older than the first listing."""
        self._wanted += 1
        self._again_at = min(self._again_at, again_at)

    @property
    def is_wanted(self) -> bool:
        return self._wanted > self._done

    def is_due(self, now: float) -> bool:
        if now >= self._again_at:
            self._again_at = math.inf
            self._wanted += 1
        return self.is_wanted and now >= self._ask_at

    def ask(self, member: str, now: float) -> None:
        self._asked, self._ask_at = member, now + ASKED_SECONDS

    def begin(self, page: SnapshotPage, now: float) -> None:
        self._begun, self._begun_at, self._lister = self._wanted, now, (page.instance, page.snapshot)

    def goes_on(self, page: SnapshotPage, now: float) -> bool:
        """Is this a page of the listing that is under way?"""
        if self._lister != (page.instance, page.snapshot):
            return False
        self._ask_at = now + PAGE_SECONDS
        return True

    def complete(self, now: float) -> None:
        """The next one waits for twice as long as this one took, and for the rest: backends have other work, also where members
        join and leave all the time."""
        self._done, self._asked, self._lister = self._begun, "", ("", 0)
        self._ask_at = now + max(self._rest, 2 * (now - self._begun_at))

    def has_left(self, member: str) -> bool:
        """Does a listing end with it?"""
        has_begun = self._lister[0] == member
        if self._asked == member:
            self._asked, self._ask_at = "", self._begun_at + self._rest if has_begun else 0.0
        if not has_begun:
            return False
        self._lister = ("", 0)
        return True
