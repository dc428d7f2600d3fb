"""Objects to store and to load, and whether what came back is what was stored."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from blake3 import blake3

from lmcache_core.contracts.l1_memory import BorrowedBuffer, MemoryRegion
from lmcache_core.model.keys import HASH_BYTES, HashChain, KeySpace, ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES, ObjectHeader, check, inspect, seal
from lmcache_core.model.results import Outcome
from lmcache_tools.bench.lane import Step, Verb
from lmcache_tools.bench.plan import spaced
from lmcache_tools.number_layouts import as_numbers

SPACE: Final = KeySpace("lmcache-bench", 0, 0, "", 256, HashChain.BLAKE3, b"lmcache-bench-l2")
"""Of all keys: a model that no engine serves, so that no other object is touched, and objects that are left behind by
accident say where they come from."""
_FILL_BYTES: Final = 4 << 20


class Slot:
    """One place in L1, with the object that lies there."""

    __slots__ = ("buffer", "key")

    def __init__(self, buffer: BorrowedBuffer, key: ObjectKey) -> None:
        self.buffer = buffer
        self.key = key


class BenchObjects:
    """`count` objects of one size in memory, no two pages of them alike.

    A load goes into a slot in which another object lies, so that a byte that was not written is a byte of the wrong object, and
    `wrong` sees it.  One thread."""

    def __init__(
        self, region: MemoryRegion, object_bytes: int, stride: int, count: int, *, numbers: bool = False
    ) -> None:
        """`numbers`: payloads are numbers that a quantizer finds something to do with (`as_numbers`)."""
        _fill(region.view[: count * stride], numbers=numbers)
        self._next = 0
        self._slots = [
            Slot(BorrowedBuffer(region, number * stride, object_bytes), self._new_key()) for number in range(count)
        ]
        self._stored: list[ObjectKey] = []
        self._places: dict[ObjectKey, int] = {}
        self._digests: dict[ObjectKey, bytes] = {}
        """Of the payload of each object, as it was sealed."""

    def renew(self) -> None:
        """New objects in every slot: keys that were never used, headers that name them."""
        self._digests.clear()
        for slot in self._slots:
            self._seal(slot)

    def stores(self) -> list[Step]:
        """Every object."""
        self._stored = [slot.key for slot in self._slots]
        self._places = {key: place for place, key in enumerate(self._stored)}
        return [self._step(Verb.STORE, slot) for slot in self._slots]

    def loads(self) -> list[Step]:
        """Every object that was stored, into another slot than it lies in."""
        return [self._load(slot) for slot in self._slots]

    def mixed(self, loads_percent: int) -> Callable[[], list[Step]]:
        """Loads of what was stored, with stores of new objects evenly between them.  The stores are the same each time that
        it is called."""
        is_load = spaced(len(self._slots), loads_percent)
        for slot, load in zip(self._slots, is_load, strict=True):
            if not load:
                self._seal(slot)

        def steps() -> list[Step]:
            return [
                self._load(slot) if load else self._step(Verb.STORE, slot)
                for slot, load in zip(self._slots, is_load, strict=True)
            ]

        return steps

    def wrong(self, steps: Sequence[Step], *, lossy: bool = False) -> Iterator[str]:
        """What is wrong with each object that did not come back byte for byte; where a serde is `lossy`, that is not a whole
        object of its key."""
        for step in steps:
            if step.verb is Verb.LOAD and (fault := self._fault(step, lossy=lossy)):
                yield f"object {step.key.object_id.hex()}: {fault}"

    def _fault(self, step: Step, *, lossy: bool) -> str | None:
        found = check(step.buffer.view, step.key)
        if found.outcome is not Outcome.DONE:
            return found.reason
        # Decoding through serdes writes a new header: that it fits the bytes does not prove that they are what was stored.
        is_same = lossy or _payload_digest(step.buffer) == self._digests.get(step.key)
        return None if is_same else "a whole object with another payload than was stored"

    def _load(self, slot: Slot) -> Step:
        """The stored ones go round: as many as there are slots, so each pass loads each of them once."""
        place = self._places.get(slot.key, 0)
        slot.key = self._stored[(place + 1) % len(self._stored)]
        return self._step(Verb.LOAD, slot)

    def _step(self, verb: Verb, slot: Slot) -> Step:
        self._next += 1
        return Step(self._next, verb, slot.key, slot.buffer)

    def _seal(self, slot: Slot) -> None:
        slot.key = self._new_key()
        seal(slot.buffer.view, slot.key, time.time_ns())
        self._digests[slot.key] = _payload_digest(slot.buffer)

    @staticmethod
    def _new_key() -> ObjectKey:
        return ObjectKey(SPACE, secrets.token_bytes(HASH_BYTES))


def _payload_digest(buffer: BorrowedBuffer) -> bytes:
    """As the header says, which must be a right one."""
    header = inspect(buffer.view[:HEADER_BYTES])
    assert isinstance(header, ObjectHeader)
    return header.payload_digest


def _fill(view: memoryview, *, numbers: bool) -> None:
    """Bytes that cannot be compressed and never repeat, or numbers."""
    seed = secrets.token_bytes(HASH_BYTES)
    stream = blake3(seed)
    for at in range(0, len(view), _FILL_BYTES):
        length = min(_FILL_BYTES, len(view) - at)
        noise = stream.digest(length, seek=at)
        view[at : at + length] = as_numbers(noise) if numbers else noise
