"""At most one server keeps order in a backend.

    absent, or its owner is gone --- claim ---> held --- renewed every eighth of a lease ---> held
                     ^                            | not renewed in time, or another's record is there
                     '---- silent for a lease ----+---> not held, and watched

An owner writes a record under a name that no object can have, and writes it again, with a higher counter, long before the
lease is over.  Clocks of two machines are never compared: a reader of the record measures with its own clock for how long
it has not changed.  An owner measures from before its last write, and stops before another server may take over.

What this relies on: monotonic clocks run equally fast within a tenth, and do not stop while the process goes on (a
machine that is frozen as a whole finds out at its next renewal); a write has had its effect when its call returns, and one
that failed has it then or never; a removal takes less than a tenth of the lease.

Where the backend cannot compare before it writes, this is Fischer's protocol (Lamport, "A Fast Mutual Exclusion
Algorithm", 1987): write, wait for longer than others may take between reading and writing, and read again.  The one that was
slower than that does not believe its own record.  To follow a process that is known to be gone without waiting for its
lease, such a backend must also let no write take longer than a tenth of the lease.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from lmcache_core import Clock, ResourceError
from lmcache_object_remote.owner_record import OwnerRecord
from lmcache_object_remote.owner_watch import OwnerWatch
from lmcache_object_remote.process_mark import ProcessMark

OWNER_NAME: Final = ".owner"
"""Appended to the prefix of the objects, it is where the record lies."""
LEASE_SECONDS: Final = 60.0
_RENEWALS: Final = 8  # in one lease: seven may fail
_HELD_SHARE: Final = 0.9  # of the lease, for the owner itself: clocks may differ by a tenth
_SETTLE_SHARE: Final = 0.05  # of the lease, between a claim and reading it again
_SLOWEST_SHARE: Final = 0.1  # of the lease, that a removal may take
_WATCH_SHARE: Final = 0.2  # of the lease, for which a start waits to see a sign of life

Sleep = Callable[[float], Awaitable[None]]


class OwnerRecords(Protocol):
    """Where the record lies in a backend.  What these raise is what the backend's client raises."""

    async def read(self) -> bytes | None:
        """None: there is none."""

    async def write(self, data: bytes, *, replaces: bytes | None) -> bool:
        """Put the record there.  False where the backend can compare, and something else than `replaces` was there (None:
        anything at all)."""

    async def remove(self) -> None:
        """No record is there any more, nor was there one, perhaps."""


class Ownership:
    """This server's claim to one backend.  One event loop; `held` may be read from any thread."""

    def __init__(
        self,
        records: OwnerRecords,
        *,
        instance_id: str,
        boot_id: str,
        shared: bool,
        clock: Clock,
        lease_seconds: float = LEASE_SECONDS,
        conditional: bool = False,
        place: str = "this backend",
        logger: logging.Logger | None = None,
        sleep: Sleep = asyncio.sleep,
        process: ProcessMark | None = None,
        is_gone: Callable[[ProcessMark], bool] = ProcessMark.is_gone,
    ) -> None:
        """`conditional`: `records.write` compares, so that of two concurrent writers one fails; without it a claim
        takes a twentieth of the lease.  `place` names adapter and backend in messages, without secrets."""
        self._records: Final = records
        self._instance_id: Final = instance_id
        self._boot_id: Final = boot_id
        self._shared: Final = shared
        self._clock: Final = clock
        self._lease: Final = float(lease_seconds)
        self._conditional: Final = conditional
        self._place: Final = place
        self._logger: Final = logger or logging.getLogger(__name__)
        self._sleep: Final = sleep
        self._process: Final = process or ProcessMark.current()
        self._watch: Final = OwnerWatch(clock, place, lease_seconds, is_gone)
        self._claim: Final = secrets.token_hex(16)
        self._counter = 0
        self._held_until = 0.0
        self._said_held = False
        self._given_up = False

    @property
    def held(self) -> bool:
        """True: no other server believes that it owns the backend.  It ends by itself when renewing fails for too long;
        ask right before what only an owner may do."""
        return self._clock.monotonic() < self._held_until

    @property
    def other(self) -> OwnerRecord | None:
        """Whose record was there when it was last read; None where it was ours, damaged, or absent."""
        record = self._watch.record
        return None if record is None or record.claim == self._claim else record

    async def take(self) -> None:
        """Become the owner.  Raises ResourceError that names the owner where another one is alive, or where something else
        lies in the record's place; and what the records raise.

        Returns with `held` False where the owner of the record gave no sign of life for a fifth of its lease, but may
        still be there: `keep` goes on watching, and takes over when the lease is over."""
        started = self._clock.monotonic()
        while True:
            await self._round()
            if self.held:
                self._say()
                return
            if self.other is not None and self._watch.is_alive:
                raise ResourceError(self._refusal())
            waited = self._clock.monotonic() - started
            if waited >= self._watch.lease_seconds * _WATCH_SHARE:
                self._logger.warning(
                    "%s: owned by %s; silent for %.0f s; waiting for the end of its lease of %.0f s, and until then "
                    "nothing is evicted or cleaned up by this server",
                    self._place,
                    self._owner(),
                    waited,
                    self._watch.lease_seconds,
                )
                return
            await self._sleep(self._watch.lease_seconds * _WATCH_SHARE / 8)

    async def keep(self) -> None:
        """Renew until cancelled.  A lost lease is taken again as soon as no other server has it.  Raises nothing that the
        backend does: a failure is logged once and tried again."""
        failing = False
        while True:
            await self._sleep(min(self._lease, self._watch.lease_seconds) / _RENEWALS)
            try:
                await self._round()
                failing = False
            except Exception as error:  # noqa: BLE001 - the backend's client is a third party's, and may raise anything
                if not failing:
                    self._logger.warning("%s: the owner's record cannot be renewed: %s", self._place, error)
                failing = True
            self._say()

    async def give_up(self) -> None:
        """Stop owning it, so that another may follow at once.  Cancel `keep` before.  Raises what the records raise; the
        lease ends then by itself."""
        self._given_up = True
        held_until, self._held_until = self._held_until, 0.0
        mine = self._own(await self._records.read())
        # No other server can have it before the removal takes effect; a record with less time left is kept.
        if mine and self._clock.monotonic() + self._lease * _SLOWEST_SHARE < held_until:
            await self._records.remove()

    async def _round(self) -> None:
        """Read the record, and write it where that is ours to do."""
        claim_started = self._clock.monotonic()
        seen = await self._records.read()
        self._watch.saw(seen)
        if self._given_up:
            return
        own = self._own(seen)
        if not own:
            self._held_until = 0.0  # another server has taken over, or removed it
        if own and (self.held or self._conditional):
            # One that was not renewed in time is still ours where no other server has replaced it, and a comparison says so.
            await self._renew(seen)
        elif seen is None or self._watch.is_dead:
            await self._claim_it(seen, claim_started)

    async def _renew(self, seen: bytes | None) -> None:
        started = self._clock.monotonic()
        data = self._next()
        if await self._put(data, seen):
            self._watch.saw(data)
            if self._conditional or self.held:  # without a comparison, only while no other server can have followed
                self._hold(started)

    async def _claim_it(self, seen: bytes | None, claim_started: float) -> None:
        started = self._clock.monotonic()
        data = self._next()
        if not await self._put(data, seen):
            return
        if self._conditional:
            self._watch.saw(data)
            self._hold(started)
            return
        was_quick = self._clock.monotonic() - claim_started <= self._lease * _SETTLE_SHARE
        await self._sleep(self._lease * _SETTLE_SHARE)
        there = await self._records.read()
        self._watch.saw(there)
        if was_quick and there == data:
            self._hold(started)

    async def _put(self, data: bytes, seen: bytes | None) -> bool:
        if await self._records.write(data, replaces=seen):
            return True
        self._held_until = 0.0
        self._watch.saw(await self._records.read())
        return False

    def _hold(self, started: float) -> None:
        if not self._given_up:
            self._held_until = started + self._lease * _HELD_SHARE

    def _next(self) -> bytes:
        self._counter += 1
        return OwnerRecord(
            self._instance_id, self._boot_id, self._claim, self._shared, self._lease, self._counter, self._process
        ).pack()

    def _own(self, data: bytes | None) -> bool:
        if data is None:
            return False
        record = OwnerRecord.unpack(data, self._place)
        return record is not None and record.claim == self._claim

    def _owner(self) -> str:
        other = self.other
        if other is None and self._watch.record is not None:
            return "no server yet: this server's own claim took too long to be valid"
        return other.describe() if other else "a server that its damaged record does not name"

    def _refusal(self) -> str:
        other = self.other
        remedy = "stop that server, or give this one a prefix of its own"
        if other is not None and other.shared:
            remedy = "only one server may own a shared backend: set 'owner' to false here"
        elif self._shared:
            remedy = "that server does not share it: set 'shared' to true there, and 'owner' to false here"
        return f"{self._place}: owned by {self._owner()}; {remedy}"

    def _say(self) -> None:
        """One line whenever it was won or lost."""
        held = self.held
        if held and not self._said_held:
            self._logger.info("%s: this server owns it", self._place)
        elif self._said_held and not held:
            self._logger.warning(
                "%s: this server owns it no longer (%s); nothing is evicted or cleaned up until it does again",
                self._place,
                f"now owned by {self._owner()}" if self.other else "its record could not be renewed in time",
            )
        self._said_held = held


async def admit_guest(
    records: OwnerRecords,
    *,
    clock: Clock,
    place: str = "this backend",
    sleep: Sleep = asyncio.sleep,
    is_gone: Callable[[ProcessMark], bool] = ProcessMark.is_gone,
) -> None:
    """May this server use the backend without owning it?  Raises ResourceError where an owner that does not share it gives
    a sign of life, for which this waits up to a fifth of its lease; and what the records raise."""
    watch = OwnerWatch(clock, place, LEASE_SECONDS, is_gone)
    started = clock.monotonic()
    while True:
        watch.saw(await records.read())
        record = watch.record
        if record is None or record.shared or watch.is_dead:
            return
        if watch.is_alive:
            raise ResourceError(
                f"{place}: owned by {record.describe()}, which does not share it; "
                "set 'shared' to true there, or give this server a prefix of its own"
            )
        if clock.monotonic() - started >= watch.lease_seconds * _WATCH_SHARE:
            return
        await sleep(watch.lease_seconds * _WATCH_SHARE / 8)
