"""Prompts that are never evicted from shared L2.  Pins are kept in the state, like quotas."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from blake3 import blake3

from lmcache_client.errors import LMCacheError
from lmcache_coordinator.spaces import served_name
from lmcache_core import ObjectKey
from lmcache_fleet.messages import HASH_BYTES
from lmcache_fleet.state import CoordinatorState, StateConflictError

PREFIX: Final = "pin/"
CHUNKS_MAX: Final = 1_000_000
ENTRY_CHUNKS: Final = 1000
"""Chunks of one entry of the state, whose values are small."""

TRIES: Final = 10


class TooManyPinsError(LMCacheError):
    """There is no room for another pin."""


class Pin(msgspec.Struct, frozen=True, array_like=True):
    """Of some chunks of one prompt of one tenant."""

    model: str
    """Its served name."""
    salt: str
    hashes: bytes
    count: int

    @property
    def key(self) -> str:
        name = msgspec.msgpack.encode((self.model, self.salt, self.hashes))
        return PREFIX + blake3(name).hexdigest(16)


class Chunk(NamedTuple):
    model: str
    salt: str
    chunk_hash: bytes


_decode = msgspec.msgpack.Decoder(Pin).decode


class Pins:
    """Safe from any thread."""

    def __init__(self, state: CoordinatorState) -> None:
        """Raises StateUnavailableError."""
        self._state = state
        self._lock = threading.Lock()  # guards the two below
        self._pins: dict[str, Pin] = {}
        self._counts: Counter[Chunk] = Counter()
        self._revision = -1
        """Of the state, when all were read."""
        self.refresh()

    def refresh(self) -> None:
        """Take in what other coordinators have pinned, if any has.  Raises StateUnavailableError."""
        if self._revision >= 0 and not self._state.wait(PREFIX, self._revision, 0.0):
            return
        with self._lock:
            reading = self._state.read(PREFIX)
            self._revision = reading.revision
            self._pins = {key: _decode(entry.value) for key, entry in reading.entries.items()}
            self._counts = Counter()
            for pin in self._pins.values():
                self._add(pin, pin.count)

    def change(self, model: str, salt: str, hashes: Sequence[bytes], by: int) -> int:
        """Pin each chunk once more, or once less.  Returns how many chunks have changed; durable then.  Raises
        TooManyPinsError, StateUnavailableError."""
        self.refresh()
        changed = 0
        with self._lock:
            if by > 0 and len(self._counts) + len(hashes) > CHUNKS_MAX:
                raise TooManyPinsError(
                    f"at most {CHUNKS_MAX} chunks can be pinned; take pins away with DELETE /cache/pins"
                )
            for at in range(0, len(hashes), ENTRY_CHUNKS):
                part = hashes[at : at + ENTRY_CHUNKS]
                pin = Pin(served_name(model), salt, b"".join(part), 0)
                changed += len(part) if self._change(pin, by) else 0
        return changed

    def _change(self, pin: Pin, by: int) -> bool:
        """False: it is not pinned.  Under the lock."""
        for _ in range(TRIES):
            entry = self._state.read(pin.key).entries.get(pin.key)
            before = _decode(entry.value) if entry else pin
            after = msgspec.structs.replace(before, count=max(0, before.count + by))
            if after.count == before.count:
                return False
            try:
                self._state.write(
                    pin.key, msgspec.msgpack.encode(after) if after.count else None, entry.revision if entry else 0
                )
            except StateConflictError:
                continue  # another coordinator was first
            known = self._pins.pop(pin.key, pin)
            if after.count:
                self._pins[pin.key] = after
            self._add(after, after.count - known.count)
            return True
        raise StateConflictError("these pins are changed by others all the time; try again")

    def has(self, key: ObjectKey) -> bool:
        space = key.space
        return Chunk(served_name(space.model_name), space.cache_salt, key.chunk_hash) in self._counts

    def counts(self) -> Mapping[Chunk, int]:
        with self._lock:
            return dict(self._counts)

    def _add(self, pin: Pin, by: int) -> None:
        for at in range(0, len(pin.hashes), HASH_BYTES):
            chunk = Chunk(pin.model, pin.salt, pin.hashes[at : at + HASH_BYTES])
            self._counts[chunk] += by
            if self._counts[chunk] <= 0:
                del self._counts[chunk]
