"""A backend that answers late, in another order, twice, wrongly, or not before everything is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lmcache_core import AdapterContext, Capability, Offer, hookimpl
from lmcache_core.contracts.completion import JobDone, JobId
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import Outcome, Usage
from lmcache_devkit.cue_adapter import CueAdapter, CueJob, Verb
from tests.simulation.oracle import HEADER_BYTES, PAYLOAD_BYTES, Holder, Oracle
from tests.simulation.runtime import Process, the_runtime

LMCACHE_PLUGIN_API = 1
FATES: Final = ("done",) * 40 + ("failed", "failed", "missing", "timed out", "twice", "flipped", "late")
LATE_SECONDS: Final = 20.0
CAPACITY_BYTES: Final = 40 * (HEADER_BYTES + PAYLOAD_BYTES)
"""Less than engines ask for, so that objects are evicted while others look them up."""


class SimulatedL2(CueAdapter):
    """Objects outlive the server, as on a disk."""

    def __init__(self, media: Media, segment: str) -> None:
        super().__init__()
        self.objects = media.objects
        self._media = media
        self._segment = segment
        task = the_runtime().current
        assert task is not None
        self._process: Process = task.process
        self._claims: dict[JobId, tuple[Holder, list[int]]] = {}

    def usage(self) -> Usage:
        return Usage(sum(map(len, self.objects.values())), CAPACITY_BYTES, len(self.objects))

    def _do(self, job: CueJob) -> list[Outcome]:
        if job.verb == "store" and self.usage().used_bytes >= CAPACITY_BYTES:
            return [Outcome.REJECTED] * len(job.keys)
        if job.verb == "delete" and any(self.pins[key.object_id] > 0 for key in job.keys):
            self._media.refused += 1
            return [Outcome.REJECTED] * len(job.keys)
        if job.verb == "delete":
            self._media.deleted += len(job.keys)
        return super()._do(job)

    def _wait(self, verb: Verb, keys: Sequence[ObjectKey], buffers: Sequence[BorrowedBuffer] = ()) -> JobId:
        number = super()._wait(verb, keys, buffers)
        job = self.waiting[-1]
        runtime = the_runtime()
        if buffers:
            self._claim(job)
        fate = runtime.random.choice(FATES) if self._media.faulty else "done"
        seconds = runtime.random.expovariate(1 / 0.05)
        if fate == "late":
            seconds += runtime.random.random() * LATE_SECONDS
        runtime.at(runtime.now + seconds, self._end, job, fate)
        return number

    def _end(self, job: CueJob, fate: str) -> None:
        if self._process.dead or job not in self.waiting:
            return
        runtime = the_runtime()
        if self._process.frozen:
            runtime.at(runtime.now + 0.1, self._end, job, fate)
            return
        if fate == "timed out":
            self.time_out(job)
            runtime.at(runtime.now + runtime.random.random() * 3, self._release_later, job)
            return
        self._release(job)
        if fate == "failed":
            self.fail(job)
        elif fate == "missing" and job.verb in ("lookup", "load"):
            self.fail(job, Outcome.MISSING)
        else:
            self.finish(job)
        if fate == "flipped" and job.verb == "load":
            place = runtime.random.randrange(job.buffers[0].length)
            job.buffers[0].view[place] ^= 0x40
        if fate == "twice":
            self._completions.post(JobDone(job.job, (Outcome.DONE,) * len(job.keys)))

    def _release_later(self, job: CueJob) -> None:
        if not self._process.dead and job in self.keeping:
            self._release(job)
            self.release_buffers(job)

    def _claim(self, job: CueJob) -> None:
        holder = Holder(self._process, f"backend's {job.verb} {job.job}")
        places = [buffer.offset + HEADER_BYTES for buffer in job.buffers]
        self._claims[job.job] = (holder, places)
        for place in places:
            self._media.oracle.claim(self._segment, place, holder, writes=job.verb == "load")

    def _release(self, job: CueJob) -> None:
        holder, places = self._claims.pop(job.job, (None, []))
        for place in places:
            assert holder is not None
            self._media.oracle.release(self._segment, place, holder)


class Media:
    """What is on the disk, and what a server that opens it sees."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.objects: dict[bytes, bytes] = {}
        self.faulty = True
        self.deleted = self.refused = 0
        """Objects that were deleted, and deletions that were refused because of a pin."""


_media: list[Media] = []


def insert_media(media: Media) -> None:
    """Servers that open a `simulated` adapter from now on find this."""
    _media[:] = [media]


def open_simulated(settings: Any, context: AdapterContext) -> SimulatedL2:
    segment = context.regions[0].name
    assert segment is not None
    return SimulatedL2(_media[-1], segment)


@hookimpl
def lmcache_l2_adapters() -> list[Offer]:
    capabilities = Capability.DELETE | Capability.USAGE
    return [Offer("simulated", "A backend with faults", "tests.simulation.l2:open_simulated", None, capabilities)]
