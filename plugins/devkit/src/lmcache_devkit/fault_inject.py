"""The `fault_inject` adapter: another one, with faults."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.completion import CompletionSource, JobId
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.contracts.l2_adapter import AdapterContext, L2Adapter, LoadItem, StoreItem
from lmcache_core.jobs.queues import CompletionQueue
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import KeyPage, Outcome, Usage
from lmcache_devkit.altered_bytes import ALTERING, altered, spoil
from lmcache_devkit.fault_plan import Fault, FaultPlan, Verb
from lmcache_devkit.inner_jobs import InnerJobs
from lmcache_devkit.lossy_completions import LossyCompletions
from lmcache_l2_adapter.async_adapter import AsyncL2Adapter
from lmcache_l2_adapter.object_adapter import ObjectL2Adapter

OBJECTS_AT_A_TIME: Final = 256
NEVER_SECONDS: Final = 7 * 86400.0
"""Operations have no time-out of their own: what a server does about those that hang is what this is for."""
INNER_CLOSE_SECONDS: Final = 1.0

Error = int | Outcome
"""An errno, which is raised as an OSError, or what is answered."""
Item = TypeVar("Item")


class FaultInjectAdapter(AsyncL2Adapter):
    """Passes everything on to `inner`, which it owns, one object at a time, but for what the plan says.

    An error is raised where an author's code would raise it, so that retries, the circuit breaker and the log are those of
    any adapter.  It never VERIFIES, because it changes bytes after `inner` has looked at them."""

    def __init__(
        self,
        context: AdapterContext,
        inner: L2Adapter,
        plan: FaultPlan,
        *,
        errors: Mapping[Verb, Error] | None = None,
        delay_seconds: float = 0.05,
        scratch: BorrowedBuffer | None = None,
    ) -> None:
        """Errors are EIO unless they are given.  `scratch` is memory of a region that `inner` knows, in which a store has
        its bytes changed; without it, or where it is too small, such a store fails.  Where this raises, `inner` is still
        the caller's."""
        self.inner: Final = inner
        self.plan: Final = plan
        self.capabilities = inner.capabilities & ~Capability.VERIFIES
        self.max_object_bytes = inner.max_object_bytes
        self.contains_is_local = bool(getattr(inner, "contains_is_local", False))
        self._errors = dict(errors or {})
        self._delay_seconds = delay_seconds
        self._scratch = scratch
        self._inner_closing: threading.Thread | None = None
        super().__init__(context, OBJECTS_AT_A_TIME, NEVER_SECONDS)
        queue = super().completions()
        assert isinstance(queue, CompletionQueue)
        self._completions = LossyCompletions(queue)

    async def started(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs = InnerJobs(self.inner, self._close_inner)
        self._resumed = asyncio.Event()
        self._scratch_turn = asyncio.Lock()

    async def stopped(self) -> None:
        await self.in_thread(self.inner.close, INNER_CLOSE_SECONDS)
        self._jobs.close()

    # --- for tests, from any thread

    def resume(self) -> None:
        """Start what is stalled."""
        self._loop.call_soon_threadsafe(self._resume)

    def find(self) -> None:
        """Answers that were lost come after all."""
        self._completions.find()

    # --- whole jobs

    def submit_store(self, batch: Sequence[StoreItem]) -> JobId:
        return self._submit("store", super().submit_store, batch, [item.key for item in batch])

    def submit_lookup(self, keys: Sequence[ObjectKey]) -> JobId:
        return self._submit("lookup", super().submit_lookup, keys, keys)

    def submit_load(self, batch: Sequence[LoadItem]) -> JobId:
        return self._submit("load", super().submit_load, batch, [item.key for item in batch])

    def submit_delete(self, keys: Sequence[ObjectKey]) -> JobId:
        return self._submit("delete", super().submit_delete, keys, keys)

    def unpin(self, keys: Sequence[ObjectKey]) -> None:
        super().unpin(keys)
        self.inner.unpin(keys)  # what was looked up here is pinned there as well

    def completions(self) -> CompletionSource:
        return self._completions

    # --- one object, on the loop

    async def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        fault = await self._begin("store", key)
        if isinstance(fault, Outcome):
            return fault
        if fault not in ALTERING:
            return await self._store(StoreItem(key, buffer))
        async with self._scratch_turn:
            return await self._store(StoreItem(key, altered(fault, key, buffer, self._scratch)))

    async def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        fault = await self._begin("load", key)
        if isinstance(fault, Outcome):
            return fault
        outcome = await self._jobs.run(partial(self.inner.submit_load, [LoadItem(key, buffer)]))
        if fault in ALTERING and outcome is Outcome.DONE:
            spoil(fault, key, buffer.view)
        return outcome

    async def contains(self, key: ObjectKey) -> bool:
        """What is found stays pinned in `inner`, until `unpin`."""
        if await self._begin("lookup", key) is Outcome.MISSING:
            return False
        outcome = await self._jobs.run(partial(self.inner.submit_lookup, [key]))
        if outcome not in (Outcome.DONE, Outcome.MISSING):
            raise OSError(errno.EIO, f"the adapter inside answered a lookup with {outcome.value}")
        return outcome is Outcome.DONE

    async def delete(self, key: ObjectKey) -> Outcome:
        fault = await self._begin("delete", key)
        if isinstance(fault, Outcome):
            return fault
        return await self._jobs.run(partial(self.inner.submit_delete, [key]))

    async def discard(self, key: ObjectKey, outcome: Outcome) -> bool:
        """`inner` has a guard of its own, which lets no store of the key pass before this has been done."""
        self.inner.reject(key, outcome)
        return True

    # --- the rest

    def is_transient(self, error: Exception) -> bool:
        inner = self.inner
        return inner.is_transient(error) if isinstance(inner, ObjectL2Adapter) else super().is_transient(error)

    def usage(self) -> Usage | None:
        return self.inner.usage()

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        return self.inner.list_keys(cursor, limit)

    # --- inside

    def _submit(
        self, verb: Verb, submit: Callable[[Sequence[Item]], JobId], batch: Sequence[Item], keys: Sequence[ObjectKey]
    ) -> JobId:
        lost = bool(keys) and self.plan.loses(verb, keys[0])
        return self._completions.submit(partial(submit, batch), lost=lost)

    async def _begin(self, verb: Verb, key: ObjectKey) -> Fault | Outcome | None:
        """What the plan says, when it is time to begin: the fault that is still to be made, or the answer.  Raises the
        error that was asked for."""
        fault = self.plan.take(verb, key)
        if fault is Fault.STALL:
            await self._resumed.wait()
        elif fault is Fault.DELAY:
            await asyncio.sleep(self._delay_seconds)
        elif fault is Fault.ERROR:
            error = self._errors.get(verb, errno.EIO)
            if isinstance(error, Outcome):
                return error
            raise OSError(error, f"{os.strerror(error)} (injected)")
        return fault

    async def _store(self, item: StoreItem) -> Outcome:
        return await self._jobs.run(partial(self.inner.submit_store, [item]))

    def _resume(self) -> None:
        self._resumed.set()
        self._resumed = asyncio.Event()

    def _close_inner(self) -> None:
        """The time to finish is over, and what is with `inner` ends when that is closed.  Must not block the loop."""
        if self._inner_closing is None:
            self._inner_closing = threading.Thread(
                target=self.inner.close,
                args=(INNER_CLOSE_SECONDS,),
                name=f"l2-{self.context.name}-closing",
                daemon=True,
            )
            self._inner_closing.start()
