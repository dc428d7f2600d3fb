"""What happens to one object around an author's method: pins, exclusive changes, objects that are not to be offered."""

from __future__ import annotations

from lmcache_core.contracts.l2_adapter import LoadItem, StoreItem
from lmcache_core.jobs.author import Author
from lmcache_core.jobs.backend_calls import BackendCalls
from lmcache_core.jobs.executor import Executor
from lmcache_core.jobs.job_table import Job
from lmcache_core.jobs.object_guard import ObjectGuard, Turn
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import Outcome


class ObjectVerbs:
    """The verbs of one adapter, as coroutines for its executor.

    The author comes with every call and is not kept, so that an adapter that nobody holds is gone at once, its
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
            if self._guard.is_condemned(object_id) and not job.answered:
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
        if self._guard.is_condemned(key.object_id):
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
            if self._guard.is_condemned(object_id):
                return Outcome.MISSING
            return await self._writes.run(author, Outcome, author.delete, key)
        finally:
            self._guard.end_change(object_id)

    async def lookup(self, author: Author, job: Job, key: ObjectKey) -> Outcome:
        """What is DONE has one more pin."""
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
        """DONE when nothing is in the way of a new object; otherwise it stays condemned."""
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
        """`discard` for whoever has the turn.  A store may have been faster, and what is there now is its object."""
        object_id = key.object_id
        verdict = self._guard.verdict(object_id)
        if verdict is None:
            return Outcome.DONE
        gone = await self._writes.run(author, bool, author.discard, key, verdict)
        if isinstance(gone, Outcome):
            return gone
        if not gone:
            return Outcome.REJECTED
        self._guard.absolve(object_id)
        return Outcome.DONE

    async def _wait(self, object_id: bytes, turn: Turn) -> None:
        try:
            await self._executor.wait_turn(turn)
        except BaseException:  # cancelled while it waited, or ended with its loop: the turn must not be lost with it
            self._guard.give_up_turn(object_id, turn)
            raise
