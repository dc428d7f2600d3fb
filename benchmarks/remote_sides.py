"""Both sides of a pair, with their loads checked: the adapter's while the clock runs, the bare client's behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from benchmarks.l2_cell import Speed
from benchmarks.l2_pairs import Side
from benchmarks.peer import BenchmarkError
from lmcache_core import Capability
from lmcache_core.model.object_header import check
from lmcache_core.model.results import Outcome
from lmcache_tools.bench.adapter_lane import AdapterLane
from lmcache_tools.bench.lane import Ended, Step, Verb
from lmcache_tools.bench.objects import BenchObjects


class ServedLane:
    """An adapter as a server uses it: what it does not check by itself (VERIFIES) is checked, header and digest, by the
    thread that takes its completions, and a load has not ended before."""

    def __init__(self, lane: AdapterLane) -> None:
        self.name: Final = lane.name
        self._lane = lane
        self._checks: Final = Capability.VERIFIES not in lane.adapter.capabilities
        self._loading: dict[int, Step] = {}

    def start(self, steps: Sequence[Step]) -> None:
        self._loading.update((step.token, step) for step in steps if step.verb is Verb.LOAD)
        self._lane.start(steps)

    def fileno(self) -> int:
        return self._lane.fileno()

    def ended(self) -> Sequence[Ended]:
        return [self._checked(end) for end in self._lane.ended()]

    def clear(self) -> None:
        """Raises BenchmarkError when something stays: the next round would measure a fuller store.  A backend that deletes
        nothing makes space by itself."""
        self._lane.clear()
        if self._lane.stored and Capability.DELETE in self._lane.adapter.capabilities:
            raise BenchmarkError(f"{self.name}: {len(self._lane.stored)} objects could not be deleted")

    def _checked(self, end: Ended) -> Ended:
        step = self._loading.pop(end.token, None)
        if step is None or end.fault is not None or not self._checks:
            return end
        found = check(step.buffer.view, step.key)
        return end if found.outcome is Outcome.DONE else Ended(end.token, found.reason)


class Proven:
    """A bare client whose loads are looked at when its clock is stopped: did the bytes come at all?"""

    def __init__(self, side: Side, objects: BenchObjects) -> None:
        self.name: Final = side.name
        self._side = side
        self._objects = objects

    def run(self, steps: Sequence[Step]) -> Speed:
        """Raises BenchmarkError."""
        speed = self._side.run(steps)
        if wrong := list(self._objects.wrong(steps)):
            raise BenchmarkError(f"{self.name}: {len(wrong)} objects came back wrong, the first: {wrong[0]}")
        return speed

    def clear(self) -> None:
        self._side.clear()
