"""Requests that are under way, with what has happened to each, and for a while those that are over."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sized
from typing import Any, Final, Generic, Protocol, TypeVar

Owner = tuple[str, str]
"""Model and cache salt."""
STEPS_FREE: Final = 16
"""Number of steps of each request that are ignored."""
_STEPS_MAX: Final = 1 << 16
_ID_CHARS_MAX: Final = 1024
_OWNER_CHARS_MAX: Final = 2048
"""A request with longer names is not followed: engines choose them."""


class OpenRequest(Protocol):
    owner: Owner | None
    """None: unknown yet."""

    @property
    def steps(self) -> Sized:
        """What is kept of it."""


Record = TypeVar("Record", bound=OpenRequest)
Trail = TypeVar("Trail")


class OpenRequests(Generic[Record, Trail]):
    """At most `limit` requests under way, with at most `steps_max` steps together beyond the first `STEPS_FREE` of each.
    One thread.

    At the limit the oldest is removed, and `on_forgotten` is called: its engine died, or its end
    was lost.  The same happens where another owner has a request of the same name: two engines may call theirs alike, and
    nothing of the one may be shown as the other's.

    Of requests that are over, a `Trail` is kept for what comes late, of the last `limit` of them at least."""

    def __init__(self, limit: int, on_forgotten: Callable[[str, Record], None], steps_max: int = _STEPS_MAX) -> None:
        self._limit = limit
        self._on_forgotten = on_forgotten
        self._steps_max = steps_max
        self._steps = 0
        self._open: OrderedDict[str, Record] = OrderedDict()
        self._over: dict[str, Trail] = {}
        self._over_before: dict[str, Trail] = {}

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._open)

    def of(self, request_id: str, owner: Owner | None) -> Record | None:
        """The one under way that an event of this owner is about; None where the event does not say whose it is: the last
        one of this name."""
        record = self._open.get(request_id)
        if record is None or owner is None or record.owner == owner:
            return record
        if record.owner is None and _are_short(request_id, owner):
            record.owner = owner
            return record
        self._forget(request_id)
        return None

    def begin(self, request_id: str, record: Record) -> bool:
        """False where it is not followed."""
        if not _are_short(request_id, record.owner):
            return False
        self._open[request_id] = record
        if len(self._open) > self._limit:
            self._forget(next(iter(self._open)))
        return True

    def count_step(self, record: Record) -> None:
        """One was added to a request that is under way."""
        if len(record.steps) > STEPS_FREE:
            self._steps += 1
            if self._steps > self._steps_max:
                self._forget(next(iter(self._open)))

    def end(self, request_id: str) -> Record | None:
        record = self._open.pop(request_id, None)
        if record is not None and len(record.steps) > STEPS_FREE:
            self._steps -= len(record.steps) - STEPS_FREE
        return record

    def remember(self, request_id: str, trail: Trail) -> None:
        """Of a request that is over."""
        self._over[request_id] = trail
        if len(self._over) > self._limit:
            self._over, self._over_before = {}, self._over

    def trail(self, request_id: str) -> Trail | None:
        return self._over.get(request_id) or self._over_before.get(request_id)

    def drain(self) -> list[tuple[str, Record]]:
        """Take out all that are under way, the oldest first."""
        drained = list(self._open.items())
        self._open.clear()
        self._steps = 0
        return drained

    def _forget(self, request_id: str) -> None:
        record = self.end(request_id)
        if record is not None:
            self._on_forgotten(request_id, record)


def _are_short(request_id: str, owner: Owner | None) -> bool:
    return 0 < len(request_id) <= _ID_CHARS_MAX and (owner is None or len(owner[0]) + len(owner[1]) <= _OWNER_CHARS_MAX)


def owner_of(event: Any) -> Owner | None:
    """None for an event that does not say whose request it is about."""
    try:
        return event.model_name, event.cache_salt
    except AttributeError:
        return None
