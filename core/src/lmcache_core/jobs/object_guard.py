"""Who may touch which object of an adapter: pins, exclusive changes, and objects that are not to be offered."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeVar

from lmcache_core.model.results import Outcome

CONDEMNED_MAX: Final = 65_536
"""So many rejected objects are remembered; an older one is found out again by its next load."""


class Turn(Protocol):
    """What somebody waits for: an event of threads, or of an event loop."""

    def set(self) -> object:
        """Now.  Called without a lock, by whoever had the turn before."""


AnyTurn = TypeVar("AnyTurn", bound=Turn)


class ObjectGuard:
    """Book-keeping by object id.  Any thread; nothing here waits, and the lock covers dictionary operations only."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # All below is guarded by _lock.
        self._pins: dict[bytes, int] = {}
        self._changing: set[bytes] = set()
        self._waiting: dict[bytes, deque[Turn]] = {}
        self._removing: set[bytes] = set()
        self._condemned: dict[bytes, Outcome] = {}
        self._discarding: set[bytes] = set()

    def pin(self, object_id: bytes) -> bool:
        """Count one pin.  False, and no pin, where the object is being removed or was condemned."""
        with self._lock:
            if object_id in self._removing or object_id in self._condemned:
                return False
            self._pins[object_id] = self._pins.get(object_id, 0) + 1
            return True

    def unpin(self, object_ids: Iterable[bytes]) -> None:
        """Take one pin from each that has one."""
        with self._lock:
            for object_id in object_ids:
                count = self._pins.get(object_id, 0)
                if count > 1:
                    self._pins[object_id] = count - 1
                elif count:
                    del self._pins[object_id]

    def begin_change(self, object_id: bytes, new_turn: Callable[[], AnyTurn]) -> AnyTurn | None:
        """Keep others from changing this object, until `end_change`.  None: from now on; otherwise from when the turn
        is set, which comes in the order of asking."""
        with self._lock:
            if object_id not in self._changing:
                self._changing.add(object_id)
                return None
            turn = new_turn()
            self._waiting.setdefault(object_id, deque()).append(turn)
            return turn

    def end_change(self, object_id: bytes) -> None:
        """Whoever waits next may change it."""
        with self._lock:
            self._removing.discard(object_id)
            waiting = self._waiting.get(object_id)
            if waiting is None:
                self._changing.discard(object_id)
                return
            turn = waiting.popleft()
            if not waiting:
                del self._waiting[object_id]
        turn.set()

    def give_up_turn(self, object_id: bytes, turn: Turn) -> None:
        """Do not wait any longer.  A turn that has come meanwhile passes to the next."""
        with self._lock:
            waiting = self._waiting.get(object_id)
            if waiting is not None and turn in waiting:
                waiting.remove(turn)
                if not waiting:
                    del self._waiting[object_id]
                return
        self.end_change(object_id)

    def begin_removal(self, object_id: bytes) -> bool:
        """Whoever changes this object may remove it, which is while it has no pin; none is given until `end_change`."""
        with self._lock:
            free = object_id not in self._pins
            if free:
                self._removing.add(object_id)
            return free

    def condemn(self, object_id: bytes, outcome: Outcome) -> bool:
        """Do not offer this object any more, which turned out DAMAGED or FOREIGN.  True: the caller is to see that it is
        discarded, and to call `end_discard` then; False: somebody is at it."""
        with self._lock:
            if object_id not in self._condemned and len(self._condemned) >= CONDEMNED_MAX:
                del self._condemned[next(iter(self._condemned))]
            self._condemned[object_id] = outcome
            is_first = object_id not in self._discarding
            self._discarding.add(object_id)
            return is_first

    def end_discard(self, object_id: bytes) -> None:
        """It was tried: where the object is still condemned, whoever condemns it next is to try again."""
        with self._lock:
            self._discarding.discard(object_id)

    def verdict(self, object_id: bytes) -> Outcome | None:
        """What a condemned object turned out to be; None for any other."""
        return self._condemned.get(object_id)

    def absolve(self, object_id: bytes) -> None:
        """Another object may take its place."""
        with self._lock:
            self._condemned.pop(object_id, None)

    def is_condemned(self, object_id: bytes) -> bool:
        return object_id in self._condemned
