"""What goes wrong next: on cue, or by chance from a seed."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from enum import Enum
from typing import Final, Literal

import xxhash

from lmcache_core.model.keys import ObjectKey

Verb = Literal["store", "lookup", "load", "delete"]
_DRAWS: Final = 2**64


class Fault(Enum):
    """What may happen to an operation on one object."""

    ERROR = "error"
    """Nothing is done, and the adapter raises or answers as planned."""
    STALL = "stall"
    """Nothing is done until `resume`, or the end."""
    TORN = "torn"
    """The second half of the bytes is not written, in the backend by a store and in the buffer by a load; it says DONE."""
    SHORT = "short"
    """The last sector of the bytes is not written; it says DONE."""
    CORRUPT = "corrupt"
    """One bit changes on the way; it says DONE."""
    DELAY = "delay"
    """It is done later."""
    LOST = "lost"
    """It is done, and never answered; its buffers are not released.  Happens to a job as a whole."""


class FaultPlan:
    """Cues come first, in their order; then each operation draws one of the faults by its chance.

    What it draws follows from the seed, the verb, the object, and how often that was done to this object before: not from
    the order in which threads and engines bring objects.  Keeps about 150 bytes for each object and verb.  Any thread."""

    def __init__(self, chances: Mapping[Verb, Mapping[Fault, float]] | None = None, seed: int = 0) -> None:
        """Chances are between 0 and 1, and those of one verb add up to 1 at most, LOST aside, which is drawn by itself.
        Raises ValueError otherwise."""
        self._chances: dict[Verb, Mapping[Fault, float]] = {}
        for verb, faults in (chances or {}).items():
            self.change(verb, faults)
        self._seed = seed
        self._lock = threading.Lock()  # guards the two below
        self._times: Counter[tuple[str, bytes]] = Counter()
        self._cues: dict[Verb, deque[Fault | None]] = defaultdict(deque)

    def cue(self, verb: Verb, *faults: Fault | None) -> None:
        """What happens to the next operations of this kind; None: no fault."""
        with self._lock:
            self._cues[verb].extend(faults)

    def change(self, verb: Verb, chances: Mapping[Fault, float]) -> None:
        """The chances of this verb from now on.  Raises ValueError for those that cannot be."""
        of_one = sum(chance for fault, chance in chances.items() if fault is not Fault.LOST)
        if min(chances.values(), default=0) < 0 or max(of_one, chances.get(Fault.LOST, 0)) > 1:
            raise ValueError(f"{verb}: the chances of all faults are at least 0 each and at most 1 together")
        self._chances[verb] = dict(chances)

    def take(self, verb: Verb, key: ObjectKey) -> Fault | None:
        """What happens to the operation that begins now; never LOST."""
        with self._lock:
            if self._cues[verb]:
                return self._cues[verb].popleft()
        chances = {fault: chance for fault, chance in self._chances.get(verb, {}).items() if fault is not Fault.LOST}
        drawn = self._draw(verb, key) if chances else 1.0
        for fault, chance in chances.items():
            if drawn < chance:
                return fault
            drawn -= chance
        return None

    def loses(self, verb: Verb, key: ObjectKey) -> bool:
        """Is the answer of a job lost that is submitted now, and begins with this key?"""
        with self._lock:
            if self._cues[verb]:
                if self._cues[verb][0] is not Fault.LOST:
                    return False
                self._cues[verb].popleft()
                return True
        chance = self._chances.get(verb, {}).get(Fault.LOST, 0.0)
        return chance > 0 and self._draw(f"lost {verb}", key) < chance

    def _draw(self, subject: str, key: ObjectKey) -> float:
        """From 0 up to 1."""
        with self._lock:
            self._times[subject, key.object_id] += 1
            number = self._times[subject, key.object_id]
        return xxhash.xxh3_64_intdigest(f"{self._seed} {subject} {number} ".encode() + key.object_id) / _DRAWS
