"""What goes wrong next: on cue, or by chance from a seed."""

from __future__ import annotations

import random
import threading
from collections import defaultdict, deque
from collections.abc import Mapping
from enum import Enum
from typing import Literal

Verb = Literal["store", "lookup", "load", "delete"]


class Fault(Enum):
    """What may happen to a job."""

    FAIL = "fail"
    """Nothing is done, and the answer is FAILED."""
    STALL = "stall"
    """Nothing is done until `resume`."""
    LOSE = "lose"
    """It is done, and never answered; its buffers are never released."""
    TEAR = "tear"
    """A store keeps half of the bytes, a load delivers half of them; both say DONE.  Other jobs are done as they are."""
    DELAY = "delay"
    """It is done later."""


class FaultPlan:
    """Cues come first, in their order; then each job draws one of the faults by its chance.  Any thread."""

    def __init__(self, chances: Mapping[Fault, float] | None = None, seed: int = 0) -> None:
        """`chances` are between 0 and 1 and add up to 1 at most.  Raises ValueError otherwise."""
        self._chances = dict(chances or {})
        if min(self._chances.values(), default=0) < 0 or sum(self._chances.values()) > 1:
            raise ValueError("the chances of all faults are at least 0 each and at most 1 together")
        self._random = random.Random(seed)
        self._lock = threading.Lock()  # guards the draws and the cues
        self._cues: dict[Verb, deque[Fault | None]] = defaultdict(deque)

    def cue(self, verb: Verb, *faults: Fault | None) -> None:
        """What happens to the next jobs of this kind; None is no fault."""
        with self._lock:
            self._cues[verb].extend(faults)

    def take(self, verb: Verb) -> Fault | None:
        """What happens to the job that is submitted now."""
        with self._lock:
            if self._cues[verb]:
                return self._cues[verb].popleft()
            drawn = self._random.random()
        for fault, chance in self._chances.items():
            if drawn < chance:
                return fault
            drawn -= chance
        return None
