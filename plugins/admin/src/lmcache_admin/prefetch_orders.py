"""Prefetches that an operator orders: chunks come from L2 into L1 without a request, and stay there as cached ones.

An order is worked on in parts, one after the other.  Each is a prefetch like that of a lookup, with the same time limit
and the same share of L1, so that a long order never takes the room or the turn of requests; what a part has brought is
cached, and no more held, when the next one begins.  A part whose time is over is gone on with as long as it gets somewhere.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

from lmcache_admin.pins import Pin, PinRefusedError, Pins, PinSubject
from lmcache_core import (
    AddressedChunks,
    CacheControl,
    ChunkLoad,
    Clock,
    LMCacheError,
    LoadedChunks,
    Shard,
)

PART_CHUNKS: Final = 64
UNDER_WAY_MAX: Final = 16
"""Orders that are not completed; one more is refused."""
LATE_MAX: Final = 16
"""Parts of one order whose time may be over: what is loaded and leaves L1 again would never come to an end."""
KEPT_MAX: Final = 256
KEPT_SECONDS: Final = 600.0
"""How long, and for how many, what came of an order can be asked for."""


class OrderRefusedError(LMCacheError):
    """Not now.  The message says why."""


class OrderState(Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


class PinWish(NamedTuple):
    """Pin what comes, under this name."""

    name: str
    subject: PinSubject
    ttl_seconds: float | None


class OrderView(NamedTuple):
    """An order, as it was at one moment.  Keys are shards of chunks; `found` is what is in L1 now or was when its part
    ended, `loaded` what came from L2 for it."""

    request_id: str
    state: OrderState
    chunks: int
    total_keys: int
    found_keys: int
    loaded_keys: int
    pinned_keys: int
    note: str
    """Why not everything was pinned; empty where there is nothing to say."""


@dataclass(slots=True, eq=False)
class _Order:
    """Written under the orders' lock."""

    request_id: str
    shards: Sequence[Shard]
    is_prompt: bool
    wanted: Sequence[bytes]
    """Chunk hashes; none once it has ended."""
    chunks: int
    total_keys: int
    pin: Pin | None = None
    """What comes is added to it."""
    at: int = 0
    """The first chunk of the part that is under way."""
    load: ChunkLoad | None = None
    state: OrderState = OrderState.PENDING
    found: int = 0
    loaded: int = 0
    pinned: int = 0
    note: str = ""
    late: int = 0
    """Parts whose time was over."""
    ended_at: float = 0.0


class PrefetchOrders:
    """Safe from any thread."""

    def __init__(self, cache: CacheControl, pins: Pins, clock: Clock) -> None:
        self._cache = cache
        self._pins = pins
        self._clock = clock
        self._lock = threading.Lock()  # guards the dictionary and everything of an order
        self._orders: dict[str, _Order] = {}

    def submit(self, chunks: AddressedChunks, pin: PinWish | None) -> OrderView:
        """Begin to bring these chunks.  Raises OrderRefusedError when too many orders are under way, and
        PinRefusedError when they could not all be pinned."""
        order = _Order(
            f"prefetch-{secrets.token_hex(8)}",
            chunks.shards,
            chunks.is_prompt,
            chunks.chunk_hashes,
            len(chunks.chunk_hashes),
            len(chunks.chunk_hashes) * len(chunks.shards),
        )
        if pin is not None:
            self._pins.check_size(chunks)
        with self._lock:
            self._forget_old()
            under_way = sum(other.state is OrderState.PENDING for other in self._orders.values())
            if under_way >= UNDER_WAY_MAX:
                raise OrderRefusedError(
                    f"{under_way} prefetches are under way, which is the most; wait for one, or cancel it"
                )
            if pin is not None:
                order.pin = self._pins.open(*pin)
            self._orders[order.request_id] = order
        self._go_on(order)
        with self._lock:
            return _view(order)

    def find(self, request_id: str) -> OrderView | None:
        with self._lock:
            self._forget_old()
            order = self._orders.get(request_id)
            return _view(order) if order else None

    def cancel(self, request_id: str) -> OrderView | None:
        """What has come stays.  None for an unknown order; one that has ended stays as it is."""
        with self._lock:
            order = self._orders.get(request_id)
            if order is None:
                return None
            load = order.load
            self._end(order, OrderState.CANCELLED)
            view = _view(order)
        if load is not None:
            load.end()
        return view

    # --- inside

    def _go_on(self, order: _Order) -> None:
        """Begin part after part, until there is something to load: on the caller's thread, and on the prefetch
        controller's after each part that had to be loaded."""
        while (part := self._next_part(order)) is not None:
            load, chunks, first_chunk = part
            loaded = load.begin(chunks, first_chunk, partial(self._on_loaded, order, load, len(chunks.chunk_hashes)))
            if loaded is None:
                return
            self._take(order, load, len(chunks.chunk_hashes), loaded)

    def _on_loaded(self, order: _Order, load: ChunkLoad, wanted: int, loaded: LoadedChunks) -> None:
        self._take(order, load, wanted, loaded)
        self._go_on(order)

    def _next_part(self, order: _Order) -> tuple[ChunkLoad, AddressedChunks, int] | None:
        """A load, its chunks, and the place of the first one.  None when the order has ended, which it does when nothing is
        left to load."""
        with self._lock:
            if order.at >= order.chunks:
                self._end(order, OrderState.COMPLETED)
            if order.state is not OrderState.PENDING:
                return None
            order.load = load = self._cache.load(order.request_id)
            wanted = order.wanted[order.at : order.at + PART_CHUNKS]
            return load, AddressedChunks(tuple(order.shards), wanted, order.is_prompt), order.at

    def _take(self, order: _Order, load: ChunkLoad, wanted: int, loaded: LoadedChunks) -> None:
        """The part has loaded what it could: pin that, or release it."""
        slots = loaded.slots
        pinned, note = self._pin(order.pin, load, slots) if order.pin else (0, "")
        load.end()
        with self._lock:
            order.load = None
            order.found += len(slots)
            order.loaded += loaded.loaded
            order.pinned += pinned
            order.note = order.note or note
            order.at += loaded.chunks
            order.late += loaded.is_late
            is_stuck = loaded.is_late and (not loaded.loaded or order.late > LATE_MAX)
            ends_here = order.is_prompt and loaded.chunks != wanted and not loaded.is_late
            if is_stuck or ends_here:
                self._end(order, OrderState.COMPLETED)

    def _pin(self, pin: Pin, load: ChunkLoad, slots: Sequence[int]) -> tuple[int, str]:
        """How many were pinned, and why not all of them."""
        try:
            pinned = self._pins.share(pin, load, slots)
        except PinRefusedError as error:
            return 0, str(error)
        return (0, f"pin '{pin.name}' was removed meanwhile") if pinned is None else (pinned, "")

    def _end(self, order: _Order, state: OrderState) -> None:
        """Under the lock."""
        if order.state is not OrderState.PENDING:
            return
        order.state, order.ended_at = state, self._clock.monotonic()
        order.wanted = ()
        if order.pin is not None:
            self._pins.close(order.pin)

    def _forget_old(self) -> None:
        """Under the lock."""
        now = self._clock.monotonic()
        ended = [order for order in self._orders.values() if order.state is not OrderState.PENDING]
        for number, order in enumerate(reversed(ended)):
            if number >= KEPT_MAX or now - order.ended_at > KEPT_SECONDS:
                del self._orders[order.request_id]


def _view(order: _Order) -> OrderView:
    return OrderView(
        order.request_id,
        order.state,
        order.chunks,
        order.total_keys,
        order.found,
        order.loaded,
        order.pinned,
        order.note,
    )
