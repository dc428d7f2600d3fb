"""Quotas of cache salts over shared L2: kept in the state, durable before they are answered.

Several coordinators may use one state.  What is answered to operators, and what is acted on, is read from the state each time,
so that no coordinator ever goes back behind what another one has answered.  What was read last is kept for what must not
wait for the state: metrics and conditions.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import msgspec

from lmcache_fleet.state import CoordinatorState, StateConflictError

PREFIX: Final = "quota/"
EVER_SET: Final = "quotas-were-set"
"""Key in the state.  Without it, an empty table means that the state is new, or was lost, and not that all have 0 bytes."""
DEFAULT: Final = "quota-default"
"""Key in the state: the default that was set last, which is used instead of the coordinator's own."""
WATCHED: Final = "quota"
"""All of them begin with it."""
TRIES: Final = 10


class Quota(msgspec.Struct, frozen=True):
    limit_bytes: int


class Default(msgspec.Struct, frozen=True):
    limit_bytes: int | None
    """None: salts without a quota are exempt."""


class QuotaTable(NamedTuple):
    """What applied at one moment."""

    revision: int
    limits: Mapping[str, int]
    """In bytes, by salt."""
    default_bytes: int | None
    were_set: bool
    """A quota or a default was once."""

    def limit(self, salt: str) -> int | None:
        """What applies to the salt; None: nothing does."""
        return self.limits.get(salt, self.default_bytes)


class Quotas:
    """Safe from any thread.  All that asks the state raises StateUnavailableError."""

    def __init__(self, state: CoordinatorState, default_bytes: int | None, default_was_given: bool) -> None:
        self._state = state
        self._own_default = default_bytes
        self._default_was_given = default_was_given
        self._lock = threading.Lock()  # guards what follows
        self._last = QuotaTable(0, {}, default_bytes, default_was_given)
        self.read()

    @property
    def last(self) -> QuotaTable:
        """What was read last, by anything."""
        return self._last

    def read(self) -> QuotaTable:
        """What applies now."""
        table = self._read()
        with self._lock:
            if table.revision >= self._last.revision:
                self._last = table
        return table

    def _read(self) -> QuotaTable:
        reading = self._state.read(WATCHED)
        limits = {
            key.removeprefix(PREFIX): msgspec.json.decode(entry.value, type=Quota).limit_bytes
            for key, entry in reading.entries.items()
            if key.startswith(PREFIX)
        }
        were_set = self._default_was_given or EVER_SET in reading.entries
        entry = reading.entries.get(DEFAULT)
        default = msgspec.json.decode(entry.value, type=Default).limit_bytes if entry else self._own_default
        return QuotaTable(reading.revision, limits, default, were_set)

    def follow(self, seconds: float) -> None:
        """Wait for what other coordinators set, at most this long, and read it: also a state that has lost its data, whose
        revisions begin anew."""
        if self._state.wait(WATCHED, self._last.revision, seconds):
            table = self._read()
            with self._lock:
                self._last = table

    def set(self, salt: str, limit_bytes: int) -> None:
        """Durable when it returns.  Where it raises, the quota is what it was, or what it was to be."""
        self._will_be_set()
        self._wrote(self._state.write(PREFIX + salt, msgspec.json.encode(Quota(limit_bytes))), {salt: limit_bytes})

    def set_default(self, limit_bytes: int | None) -> None:
        """For salts without a quota; None exempts them.  Of every coordinator that uses the state, and for good: it counts
        instead of `--default-quota-gb`.  Durable when it returns."""
        self._will_be_set()
        self._state.write(DEFAULT, msgspec.json.encode(Default(limit_bytes)))
        self.read()

    def _will_be_set(self) -> None:
        """Called first, so that no crash leaves a quota that is not enforced."""
        if EVER_SET not in self._state.read(EVER_SET).entries:
            self._state.write(EVER_SET, b"1")

    def remove(self, salt: str) -> bool:
        """False: it had none."""
        for _ in range(TRIES):
            entry = self._state.read(PREFIX + salt).entries.get(PREFIX + salt)
            if entry is None:
                return False
            try:
                self._wrote(self._state.write(PREFIX + salt, None, entry.revision), {}, {salt})
            except StateConflictError:
                continue
            return True
        raise StateConflictError(f"the quota of '{salt}' is changed by others all the time; try again")

    def _wrote(self, revision: int, limits: Mapping[str, int], removed: Collection[str] = ()) -> None:
        with self._lock:
            if revision > self._last.revision:
                kept = {salt: limit for salt, limit in self._last.limits.items() if salt not in removed}
                # not its revision: others may have written in between, and are still to be read
                self._last = self._last._replace(limits={**kept, **limits}, were_set=True)
