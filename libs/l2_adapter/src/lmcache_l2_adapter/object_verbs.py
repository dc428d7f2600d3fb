"""Operations on one object around an author's method: pins, exclusive changes, and quarantine of objects that were
rejected."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from lmcache_core import Job, LoadItem, ObjectKey, Outcome, StoreItem
from lmcache_l2_adapter.backend_calls import Author, BackendCalls
from lmcache_l2_adapter.executor import Executor, Turn

QUARANTINED_MAX: Final = 65_536
"""Rejected objects that are remembered; an older one is rejected again by its next load."""


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
        self._quarantined: dict[bytes, Outcome] = {}
        self._discarding: set[bytes] = set()

    def pin(self, object_id: bytes) -> bool:
        """Count one pin.  False, and no pin, where the object is being removed or was quarantined."""
        with self._lock:
            if object_id in self._removing or object_id in self._quarantined:
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
        """The next one that waits may change it."""
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

    def leave_queue(self, object_id: bytes, turn: Turn) -> None:
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
        """Begin to remove an object, after `begin_change`.  False where it is pinned; no pin is given until `end_change`."""
        with self._lock:
            free = object_id not in self._pins
            if free:
                self._removing.add(object_id)
            return free

    def quarantine(self, object_id: bytes, outcome: Outcome) -> bool:
        """Do not offer this object any more, which turned out DAMAGED or FOREIGN.  True: the caller is to see that it is
        discarded, and to call `end_discard` then; False: it is being discarded."""
        with self._lock:
            if object_id not in self._quarantined and len(self._quarantined) >= QUARANTINED_MAX:
                del self._quarantined[next(iter(self._quarantined))]
            self._quarantined[object_id] = outcome
            is_first = object_id not in self._discarding
            self._discarding.add(object_id)
            return is_first

    def end_discard(self, object_id: bytes) -> None:
        """It was tried: where the object is still quarantined, its next rejection tries again."""
        with self._lock:
            self._discarding.discard(object_id)

    def reason(self, object_id: bytes) -> Outcome | None:
        """The reason of an object's quarantine; None where it is not in quarantine."""
        return self._quarantined.get(object_id)

    def clear(self, object_id: bytes) -> None:
        """Another object may take its place."""
        with self._lock:
            self._quarantined.pop(object_id, None)

    def is_quarantined(self, object_id: bytes) -> bool:
        return object_id in self._quarantined


class ObjectVerbs:
    """The verbs of one adapter, as coroutines for its executor.

    The author comes with every call and is not kept, so that an unreferenced adapter is gone at once, its
    descriptor with it."""

    def __init__(self, guard: ObjectGuard, reads: BackendCalls, writes: BackendCalls, executor: Executor) -> None:
        self._guard = guard
        self._reads = reads
        self._writes = writes
        self._executor = executor

    async def store(self, author: Author, job: Job, item: StoreItem) -> Outcome:
        key, buffer = item
        if author.max_object_bytes is not None and buffer.length > author.max_object_bytes:
            return Outcome.REJECTED
        object_id = key.object_id
        if turn := self._guard.begin_change(object_id, self._executor.new_turn):
            await self._wait(object_id, turn)
        try:
            if self._guard.is_quarantined(object_id) and not job.answered:
                cleared = await self._clear(author, key)
                if cleared is not Outcome.DONE:
                    return cleared
            if job.answered:  # closed while it waited
                return Outcome.FAILED
            return await self._writes.run(author, Outcome, author.store, key, buffer)
        finally:
            self._guard.end_change(object_id)

    async def load(self, author: Author, job: Job, item: LoadItem) -> Outcome:
        key, buffer = item
        if self._guard.is_quarantined(key.object_id):
            return Outcome.MISSING
        return await self._reads.run(author, Outcome, author.load, key, buffer)

    async def delete(self, author: Author, job: Job, key: ObjectKey) -> Outcome:
        object_id = key.object_id
        if turn := self._guard.begin_change(object_id, self._executor.new_turn):
            await self._wait(object_id, turn)
        try:
            if job.answered:
                return Outcome.FAILED
            if not self._guard.begin_removal(object_id):
                return Outcome.REJECTED
            if self._guard.is_quarantined(object_id):
                return Outcome.MISSING
            return await self._writes.run(author, Outcome, author.delete, key)
        finally:
            self._guard.end_change(object_id)

    async def lookup(self, author: Author, job: Job, key: ObjectKey) -> Outcome:
        """An object that is DONE has one more pin."""
        if job.answered:
            return Outcome.FAILED
        # The pin comes first: from then on no delete can slip in between the answer and its promise.
        object_id = key.object_id
        if not self._guard.pin(object_id):
            return Outcome.MISSING
        found: bool | Outcome = False
        try:
            if author.contains_is_local:
                found = await self._reads.run_local(bool, author.contains, key)
            else:
                found = await self._reads.run(author, bool, author.contains, key)
        finally:
            if found is not True:
                self._guard.unpin((object_id,))
        if isinstance(found, Outcome):
            return found
        return Outcome.DONE if found else Outcome.MISSING

    async def discard(self, author: Author, key: ObjectKey) -> Outcome:
        """DONE when nothing is in the way of a new object; otherwise it stays quarantined."""
        object_id = key.object_id
        try:
            if turn := self._guard.begin_change(object_id, self._executor.new_turn):
                await self._wait(object_id, turn)
            try:
                return await self._clear(author, key)
            finally:
                self._guard.end_change(object_id)
        finally:
            self._guard.end_discard(object_id)

    async def _clear(self, author: Author, key: ObjectKey) -> Outcome:
        """`discard`, between `begin_change` and `end_change`.  Nothing to do where a store has cleared the quarantine."""
        object_id = key.object_id
        reason = self._guard.reason(object_id)
        if reason is None:
            return Outcome.DONE
        gone = await self._writes.run(author, bool, author.discard, key, reason)
        if isinstance(gone, Outcome):
            return gone
        if not gone:
            return Outcome.REJECTED
        self._guard.clear(object_id)
        return Outcome.DONE

    async def _wait(self, object_id: bytes, turn: Turn) -> None:
        try:
            await self._executor.wait_turn(turn)
        except BaseException:  # cancelled while it waited, or ended with its loop: the turn must not be lost with it
            self._guard.leave_queue(object_id, turn)
            raise
