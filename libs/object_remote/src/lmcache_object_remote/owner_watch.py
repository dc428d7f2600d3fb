"""Is the owner of a record alive, as far as one can see by looking at it?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lmcache_core import Clock
from lmcache_object_remote.owner_record import OwnerRecord
from lmcache_object_remote.process_mark import ProcessMark


class OwnerWatch:
    """For how long a record has not changed, by the reader's own clock.  One event loop."""

    def __init__(
        self,
        clock: Clock,
        place: str,
        lease_seconds: float,
        is_gone: Callable[[ProcessMark], bool] = ProcessMark.is_gone,
    ) -> None:
        """`lease_seconds` is for records that do not say their own, because they are damaged."""
        self._clock: Final = clock
        self._place: Final = place
        self._default_lease: Final = lease_seconds
        self._is_gone: Final = is_gone
        self._data: bytes | None = None
        self._since = 0.0
        self._changes = 0
        self.record: OwnerRecord | None = None
        """What was last seen; None: nothing, or a damaged one."""

    def saw(self, data: bytes | None) -> None:
        """Call it after the read has ended.  Raises ResourceError for what is not an owner's record."""
        record = None if data is None else OwnerRecord.unpack(data, self._place)
        if data == self._data:
            return
        # Alive is an owner that writes twice: a server that has just taken over wrote once, and a record that appears is one.
        same = record is not None and self.record is not None and record.claim == self.record.claim
        self._changes = self._changes + 1 if same else 0
        self._data, self.record, self._since = data, record, self._clock.monotonic()

    @property
    def lease_seconds(self) -> float:
        return self.record.lease_seconds if self.record else self._default_lease

    @property
    def is_alive(self) -> bool:
        """It was seen to change, and not a lease ago."""
        return self._changes > 0 and not self.is_dead

    @property
    def is_dead(self) -> bool:
        """Something is there, and its owner is gone: it was silent for a lease, or its process is known to have ended."""
        if self._data is None:
            return False
        if self.record is not None and self._is_gone(self.record.process):
            return True
        return self._clock.monotonic() - self._since >= self.lease_seconds
