"""An adapter that answers on cue, and also raises on cue."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core.contracts.completion import JobDone, JobId
from lmcache_core.contracts.l2_adapter import LoadItem, StoreItem
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import Outcome
from lmcache_devkit.cue_adapter import JUNK, CueAdapter, CueJob


class ScriptedAdapter(CueAdapter):
    def __init__(self) -> None:
        super().__init__()
        self.raises_at: set[str] = set()
        """Calls that raise when they come next: `store`, `lookup`, `load`, `unpin`, `reject`."""

    def finish_partly(self, job: CueJob, good: Sequence[bool]) -> None:
        """Do it for some keys; for the others it fails, and a load leaves junk."""
        self.waiting.remove(job)
        outcomes = self._do(job)
        for number, well in enumerate(good):
            if well:
                continue
            if job.verb == "load":
                job.buffers[number].view[:] = bytes([JUNK]) * job.buffers[number].length
            elif job.verb == "lookup" and outcomes[number] is Outcome.DONE:
                self.pins[job.keys[number].object_id] -= 1
            outcomes[number] = Outcome.FAILED
        self._completions.post(JobDone(job.job, tuple(outcomes)))

    def finish_and_keep(self, job: CueJob) -> None:
        """Do it, complete it, and go on touching the buffers until `release_buffers`: their content is undefined by then."""
        self.waiting.remove(job)
        self.keeping.append(job)
        self._completions.post(JobDone(job.job, tuple(self._do(job)), released=False))

    def submit_store(self, batch: Sequence[StoreItem]) -> JobId:
        self._raise_at("store")
        return super().submit_store(batch)

    def submit_lookup(self, keys: Sequence[ObjectKey]) -> JobId:
        self._raise_at("lookup")
        return super().submit_lookup(keys)

    def submit_load(self, batch: Sequence[LoadItem]) -> JobId:
        self._raise_at("load")
        return super().submit_load(batch)

    def unpin(self, keys: Sequence[ObjectKey]) -> None:
        super().unpin(keys)
        self._raise_at("unpin")

    def reject(self, key: ObjectKey, outcome: Outcome) -> None:
        super().reject(key, outcome)
        self._raise_at("reject")

    def _raise_at(self, call: str) -> None:
        if call in self.raises_at:
            self.raises_at.discard(call)
            raise RuntimeError(f"{call} raises on cue")
