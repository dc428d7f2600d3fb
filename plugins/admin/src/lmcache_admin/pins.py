"""Pins: chunks that an operator wants to stay in L1.

A pin has a name and references what it was given: that is not evicted, and no quota takes it away, but it counts as used.
All pins together are bounded.  A pin ends when its time is over, when it is removed, when L1 is cleared by force, and with
the server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lmcache_core import (
    AddressedChunks,
    CacheControl,
    ChunkLoad,
    Clock,
    ConfigError,
    PinOwner,
    PinTotals,
    References,
    Shard,
)

PINS_MAX: Final = 1024
"""Names."""
SLICE: Final = 1024
"""Chunks that are referenced, or released, under one acquisition of the lock of L1."""
PAUSE_SECONDS: Final = 0.0001
"""Between two slices, so that requests get the lock of L1."""


class PinRefusedError(ConfigError):
    """This cannot be pinned.  The message gives the reason and the remedy."""


class PinSubject(NamedTuple):
    """Whose chunks a pin references."""

    model_name: str
    cache_salt: str


class PinView(NamedTuple):
    """A pin, as it was at one moment."""

    name: str
    subject: PinSubject
    objects: int
    size_bytes: int
    """Of the slots, those that other pins reference, too, included."""
    expires_in_seconds: float | None
    """None: it stays until it is released."""


class Pinned(NamedTuple):
    """The result of one request to pin."""

    chunks: int
    """Of which every shard is pinned now."""
    objects: int
    """Shards of chunks that are pinned now, whether they were before or not."""


@dataclass(slots=True, eq=False)
class Pin:
    """A pin that there is, or was.  Changed by `Pins` alone, under its lock."""

    name: str
    subject: PinSubject
    deadline: float | None
    references: list[References] = field(default_factory=list)
    """None of them is empty."""
    slots: dict[int, int] = field(default_factory=dict)
    """Bytes by slot."""
    users: int = 0
    """Callers that may still add to it; as long as there is one it may be empty."""


class Pins(PinOwner):
    """Safe from any thread."""

    def __init__(self, cache: CacheControl, clock: Clock) -> None:
        super().__init__(cache.pin_max_bytes)
        self._cache = cache
        self._clock = clock
        self._lock = threading.Lock()  # guards the three below
        self._pins: dict[str, Pin] = {}
        self._pinned: dict[int, int] = {}
        """How many pins reference a slot."""
        self._pinned_bytes = 0
        cache.set_pin_owner(self)

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
        references: list[References] = []
        sizes: dict[int, int] = {}
        whole = size_bytes = 0
        try:
            hashes = list(dict.fromkeys(chunks.chunk_hashes))
            for begin in range(0, len(hashes), SLICE):
                rows = self._acquire(name, chunks.shards, hashes[begin : begin + SLICE], references)
                found = self._sizes(slot for row in rows for slot in row if slot >= 0)
                sizes |= found
                whole += sum(min(slots) >= 0 for slots in zip(*rows, strict=True))
                size_bytes += sum(found.values())
                if size_bytes > self.max_bytes:
                    raise self._no_space()
            added = self._add(pin, references, sizes)
        except BaseException:
            _end_all(references)
            raise
        finally:
            self.close(pin)
        if not added:
            raise PinRefusedError(f"pin '{name}' has just been removed; ask again")
        self._renew(pin, ttl_seconds)
        return Pinned(whole, len(sizes))

    def share(self, pin: Pin, load: ChunkLoad, slots: Sequence[int]) -> int | None:
        """Add those of these slots that `load` still holds.  Returns how many; None when the pin has ended.  Raises
        PinRefusedError when it is more than may be pinned; nothing is added then."""
        references = self._cache.references(pin.name)
        try:
            sizes = self._sizes(load.share(references, slots))
            return len(sizes) if self._add(pin, [references], sizes) else None
        except BaseException:
            references.end()
            raise

    def check_size(self, chunks: AddressedChunks) -> None:
        """Raises PinRefusedError for more than all pins together may hold."""
        slots = (
            max(self._cache.slot_bytes_for(space.payload_bytes) for space in shard.spaces) for shard in chunks.shards
        )
        if sum(slots) * len(chunks.chunk_hashes) > self.max_bytes:
            raise self._no_space()

    # --- releasing

    def unpin(self, name: str) -> PinView | None:
        """What the pin held; None where there is no such pin."""
        return self._unpin(name, lambda pin: True)

    def clear(self) -> None:
        with self._lock:
            names = list(self._pins)
        for name in names:
            self.unpin(name)

    def release(self, slots: Sequence[int]) -> None:
        """No pin references these any more; one that references nothing else ends."""
        if not slots:
            return
        with self._lock:
            for pin in [pin for pin in self._pins.values() if not pin.slots.keys().isdisjoint(slots)]:
                mine = {slot for slot in slots if slot in pin.slots}
                for slot in mine:
                    self._uncount(slot, pin.slots.pop(slot))
                for each in [each for each in pin.references if not mine.isdisjoint(each.slots)]:
                    each.release(list(mine))
                _end_empty(pin)
                self._forget_if_empty(pin)

    def expire(self) -> None:
        """End the pins whose time is over."""
        now = self._clock.monotonic()

        def is_late(pin: Pin) -> bool:
            return pin.deadline is not None and pin.deadline <= now

        with self._lock:
            late = [pin.name for pin in self._pins.values() if is_late(pin)]
        for name in late:
            self._unpin(name, is_late)  # it may have been given another time to live meanwhile

    # --- looking

    def slots(self) -> list[int]:
        return list(self._pinned)

    def has(self, slot: int) -> bool:
        return slot in self._pinned

    def everything(self) -> list[PinView]:
        """In the order of their names."""
        now = self._clock.monotonic()
        with self._lock:
            return [self._view(self._pins[name], now) for name in sorted(self._pins)]

    def totals(self) -> PinTotals:
        with self._lock:
            return PinTotals(len(self._pins), len(self._pinned), self._pinned_bytes, self.max_bytes)

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

    def _acquire(
        self, name: str, shards: Sequence[Shard], hashes: Sequence[bytes], references: list[References]
    ) -> list[list[int]]:
        """Reference what there is of these chunks.  Returns the slots by shard."""
        rows = []
        for shard in shards:
            references.append(self._cache.references(name))
            rows.append(references[-1].acquire(shard, hashes))
        return rows

    def _sizes(self, slots: Iterable[int]) -> dict[int, int]:
        return {slot: self._cache.slot_bytes(slot) for slot in slots}

    def _add(self, pin: Pin, references: Sequence[References], sizes: Mapping[int, int]) -> bool:
        """The pin has these references from now on; to slots that it had before they are released.  False, and they are
        ended, when the pin has ended."""
        with self._lock:
            is_there = self._pins.get(pin.name) is pin
            if is_there:
                fresh = sum(size for slot, size in sizes.items() if slot not in self._pinned)
                if self._pinned_bytes + fresh > self.max_bytes:
                    raise self._no_space()
                for each in references:
                    each.release([slot for slot in each.slots if slot in pin.slots])
                for slot, size in sizes.items():
                    if slot not in pin.slots:
                        pin.slots[slot] = size
                        self._count(slot, size)
                pin.references += references
                _end_empty(pin)
        if not is_there:
            _end_all(references)
            return False
        # A forced drop of an object releases its pins afterwards: one that was not listed here then is released now.
        slots = list(sizes)
        for begin in range(0, len(slots), SLICE):
            self.release(self._cache.lost(slots[begin : begin + SLICE]))
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
            references, pin.references, pin.slots = pin.references, [], {}
        _end_all(references)
        return view

    def _forget_if_empty(self, pin: Pin) -> None:
        """Under the lock."""
        if not pin.slots and not pin.users and self._pins.get(pin.name) is pin:
            del self._pins[pin.name]

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

    def _no_space(self) -> PinRefusedError:
        return PinRefusedError(
            f"{self._pinned_bytes} of at most {self.max_bytes} bytes of L1 are pinned, and this is more than the rest; "
            "unpin something, or start the server with a larger --l1-pin-max-ratio"
        )

    @staticmethod
    def _view(pin: Pin, now: float) -> PinView:
        left = None if pin.deadline is None else max(0.0, pin.deadline - now)
        return PinView(pin.name, pin.subject, len(pin.slots), sum(pin.slots.values()), left)


def _end_empty(pin: Pin) -> None:
    """Under the lock."""
    for each in [each for each in pin.references if not each.slots]:
        pin.references.remove(each)
        each.end()


def _end_all(references: Sequence[References]) -> None:
    """A slice at a time: a pin may reference a large part of L1."""
    for number, each in enumerate(references):
        if number:
            time.sleep(PAUSE_SECONDS)
        each.end()
