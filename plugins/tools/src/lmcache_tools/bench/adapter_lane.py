"""Moves objects through an adapter, one job for each, as a server opens and asks it."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Sequence
from typing import Final

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.completion import BuffersReleased, JobDone, JobId
from lmcache_core.contracts.l2_adapter import L2Adapter, LoadItem, StoreItem
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import Outcome
from lmcache_tools.bench.lane import Ended, Step, Verb
from lmcache_tools.number_layouts import lossy_serdes

_DELETE_BATCH: Final = 256
_GONE: Final = (Outcome.DONE, Outcome.MISSING)
_MEANINGS: Final = {
    Outcome.REJECTED: "rejected; it has no room, or takes no object of this size: raise its capacity, or lower --bytes",
    Outcome.MISSING: "missing, although it was stored; raise its capacity if it evicts by itself",
    Outcome.FAILED: "failed; its log says why",
}


class AdapterLane:
    """Knows every key that was given to a store, so that `clear` deletes what an interrupted pass left as well."""

    def __init__(self, name: str, adapter: L2Adapter, patience_seconds: float) -> None:
        """The adapter stays the caller's."""
        self.name: Final = name
        self.adapter: Final = adapter
        self.lossy: Final = lossy_serdes(adapter)
        """Names of serdes that bring back other numbers than were stored."""
        self.stored: set[ObjectKey] = set()
        """What may be there."""
        self._patience_seconds = patience_seconds
        self._under_way: dict[JobId, int] = {}
        self._kept: dict[JobId, str | None] = {}
        """Answered, and the buffer is not back yet."""
        self._done: dict[JobId, JobDone] = {}
        """Of deletions."""

    def start(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if step.verb is Verb.STORE:
                self.stored.add(step.key)
                job = self.adapter.submit_store([StoreItem(step.key, step.buffer)])
            else:
                job = self.adapter.submit_load([LoadItem(step.key, step.buffer)])
            self._under_way[job] = step.token

    def fileno(self) -> int:
        return self.adapter.completions().fileno()

    @property
    def is_quiet(self) -> bool:
        """Does the adapter hold no buffer any more?"""
        return not self._under_way

    def ended(self) -> Sequence[Ended]:
        ended: list[Ended] = []
        for completion in self.adapter.completions().drain():
            job = completion.job
            if isinstance(completion, BuffersReleased):
                if job in self._kept:
                    ended.append(Ended(self._under_way.pop(job), self._kept.pop(job)))
            elif job not in self._under_way:
                self._done[job] = completion
            elif completion.released:
                ended.append(Ended(self._under_way.pop(job), _fault(completion.outcomes[0])))
            else:
                self._kept[job] = _fault(completion.outcomes[0])
        return ended

    def clear(self) -> None:
        """Delete what was stored, as far as the adapter can, and does so in time.  What stays is in `stored`."""
        if Capability.DELETE not in self.adapter.capabilities:
            return
        keys = list(self.stored)
        for at in range(0, len(keys), _DELETE_BATCH):
            batch = keys[at : at + _DELETE_BATCH]
            outcomes = self._outcomes(self.adapter.submit_delete(batch))
            self.stored.difference_update(
                key for key, outcome in zip(batch, outcomes, strict=False) if outcome in _GONE
            )

    def _outcomes(self, job: JobId) -> Iterable[Outcome]:
        """None of them, where there is no answer in time."""
        end = time.monotonic() + self._patience_seconds
        while job not in self._done and (left := end - time.monotonic()) > 0:
            select.select([self.fileno()], [], [], left)
            self.ended()
        done = self._done.pop(job, None)
        return done.outcomes if done else ()


def _fault(outcome: Outcome) -> str | None:
    return None if outcome is Outcome.DONE else _MEANINGS.get(outcome, outcome.value)
