"""Pins: chunks that an operator wants to stay in L1.

A pin has a name and holds, by leases without a deadline, what it was given: it is not evicted, and no quota takes it
away, but it counts as used.  All pins together are bounded.  A pin ends when its time is over, when it is removed, when L1
is cleared by force, and with the server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lmcache_core.contracts.cache_control import (
    AddressedChunks,
    Pinned,
    PinRefusedError,
    PinSubject,
    PinTotals,
    PinView,
)
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.storage import Shard
from lmcache_core.controllers.prefetch_request import ABSENT
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.index import PAUSE_SECONDS
from lmcache_core.l1.leases import Lease, Owner, OwnerKind
from lmcache_core.storage.lookups import hold_shard

PINS_MAX: Final = 1024
"""Names."""
SLICE: Final = 1024
"""Chunks of one lease, so that none of them takes long to end."""


class _Held(NamedTuple):
    chunks: int
    """Of which there is every shard."""
    sizes: Mapping[int, int]
    """Bytes of the slots."""


@dataclass(slots=True, eq=False)
class Pin:
    """A pin that there is, or was.  Changed by `Pins` alone, under its lock."""

    name: str
    subject: PinSubject
    deadline: float | None
    leases: list[Lease] = field(default_factory=list)
    """None of them is empty."""
    slots: dict[int, int] = field(default_factory=dict)
    """Bytes by slot."""
    users: int = 0
    """Who may still add to it; until they are done it may be empty."""


class Pins:
    """Implements `contracts.cache_control.PinControl`."""

    def __init__(self, cache: L1Cache, max_bytes: int, clock: Clock) -> None:
        self._cache = cache
        self._max_bytes = max_bytes
        self._clock = clock
        self._lock = threading.Lock()  # guards the three below
        self._pins: dict[str, Pin] = {}
        self._pinned: dict[int, int] = {}
        """How many pins hold a slot."""
        self._pinned_bytes = 0
        cache.slabs.fixed_slots = lambda: list(self._pinned)

    # --- pinning

    def open(self, name: str, subject: PinSubject, ttl_seconds: float | None) -> Pin:
        """To be added to until `close`: the pin of this name, which has this time to live from now on, or a new one.
        Raises PinRefusedError when there are too many, and when that name is another model's or tenant's."""
        pin = self._claim(name, subject, ttl_seconds)
        self._renew(pin, ttl_seconds)
        return pin

    def close(self, pin: Pin) -> None:
        """Once for each `open`.  A pin that holds nothing and is not open is removed."""
        with self._lock:
            pin.users -= 1
            self._forget_if_empty(pin)

    def pin(self, name: str, subject: PinSubject, ttl_seconds: float | None, chunks: AddressedChunks) -> Pinned:
        """Add what L1 has of these chunks to the pin of this name, which is made where there is none: all of it, or
        nothing.  Raises PinRefusedError as `open` does, and when it is more than may be pinned."""
        pin = self._claim(name, subject, ttl_seconds)
        leases: list[Lease] = []
        held: dict[int, int] = {}
        whole = size_bytes = 0
        try:
            hashes = list(dict.fromkeys(chunks.chunk_hashes))
            for begin in range(0, len(hashes), SLICE):
                part = self._hold(name, chunks.shards, hashes[begin : begin + SLICE], leases)
                held |= part.sizes
                whole, size_bytes = whole + part.chunks, size_bytes + sum(part.sizes.values())
                if size_bytes > self._max_bytes:
                    raise self._no_room()
            added = self._add(pin, leases, held)
        except BaseException:
            self._end_all(leases)
            raise
        finally:
            self.close(pin)
        if not added:
            raise PinRefusedError(f"pin '{name}' has just been removed; ask again")
        self._renew(pin, ttl_seconds)
        return Pinned(whole, len(held))

    def share(self, pin: Pin, held: Lease, slots: Sequence[int]) -> int | None:
        """Add those of these slots that `held` still holds.  Returns how many; None when the pin has ended.  Raises
        PinRefusedError when it is more than may be pinned; nothing is added then."""
        lease = self._cache.leases.open(Owner(OwnerKind.PIN, pin.name), None)
        try:
            sizes = {slot: self._cache.slot_bytes(slot) for slot in self._cache.leases.share(lease, held, slots)}
            return len(sizes) if self._add(pin, [lease], sizes) else None
        except BaseException:
            self._cache.leases.end(lease)
            raise

    def check_size(self, chunks: AddressedChunks) -> None:
        """Raises PinRefusedError for more than all pins together may hold."""
        slots = (
            max(self._cache.slot_bytes_for(space.payload_bytes) for space in shard.spaces) for shard in chunks.shards
        )
        if sum(slots) * len(chunks.chunk_hashes) > self._max_bytes:
            raise self._no_room()

    # --- letting go

    def unpin(self, name: str) -> PinView | None:
        """What the pin held; None where there is no such pin."""
        return self._unpin(name, lambda pin: True)

    def end_everything(self) -> None:
        with self._lock:
            names = list(self._pins)
        for name in names:
            self.unpin(name)

    def let_go(self, slots: Sequence[int]) -> None:
        """No pin holds these any more; one that holds nothing else has ended."""
        if not slots:
            return
        with self._lock:
            for pin in [pin for pin in self._pins.values() if not pin.slots.keys().isdisjoint(slots)]:
                mine = {slot for slot in slots if slot in pin.slots}
                for slot in mine:
                    self._uncount(slot, pin.slots.pop(slot))
                for lease in [lease for lease in pin.leases if not mine.isdisjoint(lease.slots)]:
                    self._cache.leases.release(lease, list(mine))
                self._end_empty(pin)
                self._forget_if_empty(pin)

    def expire(self) -> None:
        """End the pins whose time is over; called every now and then."""
        now = self._clock.monotonic()

        def is_late(pin: Pin) -> bool:
            return pin.deadline is not None and pin.deadline <= now

        with self._lock:
            late = [pin.name for pin in self._pins.values() if is_late(pin)]
        for name in late:
            self._unpin(name, is_late)  # it may have been given another time to live meanwhile

    # --- looking

    def holds(self, slot: int) -> bool:
        return slot in self._pinned

    def everything(self) -> list[PinView]:
        """In the order of their names."""
        now = self._clock.monotonic()
        with self._lock:
            return [self._view(self._pins[name], now) for name in sorted(self._pins)]

    def totals(self) -> PinTotals:
        with self._lock:
            return PinTotals(len(self._pins), len(self._pinned), self._pinned_bytes, self._max_bytes)

    # --- inside

    def _claim(self, name: str, subject: PinSubject, ttl_seconds: float | None) -> Pin:
        """Open the pin of this name to add to it; an existing one stays as it is."""
        with self._lock:
            pin = self._pins.get(name)
            if pin is not None and pin.subject != subject:
                raise PinRefusedError(
                    f"pin '{name}' holds chunks of another model or cache salt (model '{pin.subject.model_name}'); choose "
                    "another name, or unpin it first"
                )
            if pin is None and len(self._pins) >= PINS_MAX:
                raise PinRefusedError(f"there are {PINS_MAX} pins, which is the most; unpin one, or add to one of them")
            if pin is None:
                pin = self._pins[name] = Pin(name, subject, self._deadline(ttl_seconds))
            pin.users += 1
            return pin

    def _renew(self, pin: Pin, ttl_seconds: float | None) -> None:
        with self._lock:
            pin.deadline = self._deadline(ttl_seconds)

    def _deadline(self, ttl_seconds: float | None) -> float | None:
        return None if ttl_seconds is None else self._clock.monotonic() + ttl_seconds

    def _hold(self, name: str, shards: Sequence[Shard], hashes: Sequence[bytes], leases: list[Lease]) -> _Held:
        """What there is of these chunks is held by new leases."""
        there = [bool(shards)] * len(hashes)
        sizes: dict[int, int] = {}
        for shard in shards:
            lease = self._cache.leases.open(Owner(OwnerKind.PIN, name), None)
            leases.append(lease)
            slots, _ = hold_shard(self._cache, lease, shard, hashes)
            for at, slot in enumerate(slots):
                if slot == ABSENT:
                    there[at] = False
                else:
                    sizes[slot] = self._cache.slot_bytes(slot)
        return _Held(sum(there), sizes)

    def _add(self, pin: Pin, leases: Sequence[Lease], held: Mapping[int, int]) -> bool:
        """The pin has these leases, which hold these slots, from now on; those that it had before are released once.
        False, and they are ended, when there is no such pin any more."""
        with self._lock:
            is_there = self._pins.get(pin.name) is pin
            if is_there:
                fresh = sum(size for slot, size in held.items() if slot not in self._pinned)
                if self._pinned_bytes + fresh > self._max_bytes:
                    raise self._no_room()
                for lease in leases:
                    self._cache.leases.release(lease, [slot for slot in lease.slots if slot in pin.slots])
                for slot, size in held.items():
                    if slot not in pin.slots:
                        pin.slots[slot] = size
                        self._count(slot, size)
                pin.leases += leases
                self._end_empty(pin)
        if not is_there:
            self._end_all(leases)
            return False
        # A forced drop of an object releases its pins afterwards: one that was not listed here then is released now.
        slots = list(held)
        for begin in range(0, len(slots), SLICE):
            self.let_go(self._cache.contents.lost(slots[begin : begin + SLICE]))
        return True

    def _unpin(self, name: str, if_it: Callable[[Pin], bool]) -> PinView | None:
        with self._lock:
            pin = self._pins.get(name)
            if pin is None or not if_it(pin):
                return None
            del self._pins[name]
            view = self._view(pin, self._clock.monotonic())
            for slot, size in pin.slots.items():
                self._uncount(slot, size)
            leases, pin.leases, pin.slots = pin.leases, [], {}
        self._end_all(leases)
        return view

    def _forget_if_empty(self, pin: Pin) -> None:
        """Under the lock."""
        if not pin.slots and not pin.users and self._pins.get(pin.name) is pin:
            del self._pins[pin.name]

    def _end_empty(self, pin: Pin) -> None:
        """Under the lock."""
        for lease in [lease for lease in pin.leases if not lease.slots]:
            pin.leases.remove(lease)
            self._cache.leases.end(lease)

    def _count(self, slot: int, size: int) -> None:
        count = self._pinned.get(slot, 0)
        self._pinned[slot] = count + 1
        self._pinned_bytes += 0 if count else size

    def _uncount(self, slot: int, size: int) -> None:
        count = self._pinned[slot] - 1
        if count:
            self._pinned[slot] = count
        else:
            del self._pinned[slot]
            self._pinned_bytes -= size

    def _end_all(self, leases: Sequence[Lease]) -> None:
        """A slice at a time: a pin may hold a large part of L1."""
        for number, lease in enumerate(leases):
            if number:
                time.sleep(PAUSE_SECONDS)
            self._cache.leases.end(lease)

    def _no_room(self) -> PinRefusedError:
        return PinRefusedError(
            f"{self._pinned_bytes} of at most {self._max_bytes} bytes of L1 are pinned, and this is more than the rest; "
            "unpin something, or start the server with a larger --l1-pin-max-ratio"
        )

    @staticmethod
    def _view(pin: Pin, now: float) -> PinView:
        left = None if pin.deadline is None else max(0.0, pin.deadline - now)
        return PinView(pin.name, pin.subject, len(pin.slots), sum(pin.slots.values()), left)
