"""`POST /l2/events`: batches of servers that do not keep journals."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from enum import Enum
from typing import Final

from lmcache_coordinator.models import CacheEvent, EventKey
from lmcache_coordinator.usage import Backend, SharedUsage
from lmcache_core import HashChain, KeySpace, ObjectKey

logger = logging.getLogger(__name__)

BACKEND: Final = Backend("", "")
"""These servers do not name one: all have the same."""
_HASH_BYTES: Final = 32
_LAYOUT_BYTES: Final = 16
"""Of a space.  These events do not have one: the last byte says how long the hash is."""
INSTANCES_MAX: Final = 10_000


REPEATS_MIN: Final = 8
"""Batches in a row that came before, from which on a server is taken to have started again, and to count from 1."""
STARTS_MAX: Final = 16
"""Earlier starts of an instance that are remembered."""


class Taken(Enum):
    APPLIED = "applied"
    DUPLICATE = "duplicate"
    """It came before."""
    STALE = "stale"
    """It is from a start of the server that another one has followed."""


class _Position:
    """Where one instance is in its batches."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.last: int | None = None
        self.before: list[str] = []
        self.repeats = 0
        """Batches in a row that came before."""
        self.warn_at = REPEATS_MIN


class PostedEvents:
    """Safe from any thread."""

    def __init__(self, usage: SharedUsage) -> None:
        self._usage = usage
        self._lock = threading.Lock()  # guards all below; batches are applied one at a time
        self._positions: dict[str, _Position] = {}
        self.gaps = 0
        """Batches in front of which others are missing."""
        self.rows = 0
        """Of batches that came before, too long for messages that were sent twice."""
        self.batches = 0
        self.events = 0

    def take(self, instance: str, seq: int, events: Sequence[CacheEvent], incarnation: str = "") -> Taken:
        """All events are recorded, or none."""
        with self._lock:
            position = self._positions.get(instance)
            if position is None:
                if len(self._positions) >= INSTANCES_MAX:
                    del self._positions[next(iter(self._positions))]
                position = self._positions[instance] = _Position(incarnation)
            if incarnation != position.incarnation:
                if incarnation in position.before:
                    return Taken.STALE
                position.before = [*position.before, position.incarnation][-STARTS_MAX:]
                position.incarnation, position.last = incarnation, None
            if position.last is not None and seq <= position.last:
                self._repeated(instance, position)
                return Taken.DUPLICATE
            self.gaps += position.last is not None and seq > position.last + 1
            position.last, position.repeats, position.warn_at = seq, 0, REPEATS_MIN
            self.batches += 1
            self.events += len(events)
            for event in events:
                self._apply(event)
        return Taken.APPLIED

    def _repeated(self, instance: str, position: _Position) -> None:
        """Many in a row are new ones of a server that did not say that it has started again: a listing finds what they say."""
        position.repeats += 1
        if position.repeats < position.warn_at:
            return
        position.warn_at *= 2
        self.rows += 1
        logger.warning(
            "%d batches in a row came before, and were not recorded; a server that starts again is to register, or to say "
            "another incarnation instance=%s last_seq=%s",
            position.repeats,
            instance,
            position.last,
        )

    def forget(self, instance: str) -> None:
        """It starts anew, and so do its numbers."""
        with self._lock:
            self._positions.pop(instance, None)

    def _apply(self, event: CacheEvent) -> None:
        space, hashes = space_of(event.key), [event_hash(event.key.chunk_hash_hex)]
        match event.type:
            case "store":
                self._usage.store(BACKEND, space, hashes, event.bytes)
            case "lookup":
                self._usage.access(BACKEND, space, hashes)
            case "delete":
                self._usage.delete(BACKEND, space, hashes)


def space_of(key: EventKey) -> KeySpace:
    length = len(key.chunk_hash_hex) // 2
    layout = bytes(_LAYOUT_BYTES - 1) + bytes((length,))
    return KeySpace(key.model_name, key.kv_rank, key.object_group_id, key.cache_salt, 0, HashChain.BLAKE3, layout)


def event_hash(text: str) -> bytes:
    """The chunk hash; shorter ones are filled up."""
    return bytes.fromhex(text).ljust(_HASH_BYTES, b"\0")


def key_of(key: ObjectKey) -> EventKey:
    """As its server has named it."""
    space = key.space
    return EventKey(
        chunk_hash_hex=key.chunk_hash[: space.layout[-1]].hex(),
        model_name=space.model_name,
        kv_rank=space.kv_rank,
        cache_salt=space.cache_salt,
        object_group_id=space.object_group,
    )
