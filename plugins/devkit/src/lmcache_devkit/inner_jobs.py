"""Jobs of an adapter, as things that a coroutine can await."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lmcache_core.contracts.completion import BuffersReleased, Completion, JobId
from lmcache_core.contracts.l2_adapter import L2Adapter
from lmcache_core.model.results import Outcome


class InnerJobs:
    """Jobs of one object each.  Belongs to the event loop on which it is made."""

    def __init__(self, inner: L2Adapter, hurry: Callable[[], None]) -> None:
        """`hurry` is called, at least once, when a task that waits for `inner` is cancelled."""
        self._inner = inner
        self._hurry = hurry
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[JobId, asyncio.Future[Outcome]] = {}
        self._unreleased: dict[JobId, Outcome] = {}
        self._descriptor = inner.completions().fileno()
        self._loop.add_reader(self._descriptor, self._drain)

    async def run(self, submit: Callable[[], JobId]) -> Outcome:
        """The outcome, when the buffers are released as well.  A cancellation does not end it before: they are in use."""
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._waiting[submit()] = future
        while not future.done():
            try:
                await asyncio.wait((future,))  # which does not cancel what it waits for
            except asyncio.CancelledError:
                self._hurry()
        return future.result()

    def close(self) -> None:
        """Listen no longer."""
        self._drain()
        self._loop.remove_reader(self._descriptor)

    def _drain(self) -> None:
        for completion in self._inner.completions().drain():
            self._take(completion)

    def _take(self, completion: Completion) -> None:
        if isinstance(completion, BuffersReleased):
            outcome = self._unreleased.pop(completion.job)
        else:
            (outcome,) = completion.outcomes
            if not completion.released:
                self._unreleased[completion.job] = outcome
                return
        self._waiting.pop(completion.job).set_result(outcome)
