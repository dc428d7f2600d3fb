"""Keeps a lane busy with a number of concurrent steps, and measures the time."""

from __future__ import annotations

import resource
import select
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from lmcache_tools.bench.interruption import Interruption
from lmcache_tools.bench.lane import BenchFailedError, Ended, Lane, Step
from lmcache_tools.quantities import size_text

_LOOK_SECONDS: Final = 0.2
"""How soon an interruption is noticed where nothing moves."""
_IO_COUNTS: Final = Path("/proc/self/io")


@dataclass(frozen=True, slots=True)
class Sample:
    """One pass of one lane.  Seconds are those of the wall, CPU that of all threads of this process, and latencies run from
    the start of a step to the moment that its end is noticed."""

    moved_bytes: int
    seconds: float
    cpu_seconds: float
    latencies: tuple[float, ...]
    device_read_bytes: int | None = None
    """What storage had to deliver, as the kernel counts it for this process: the rest of what was loaded came from memory.
    None where the kernel does not say."""

    @property
    def bytes_per_second(self) -> float:
        return self.moved_bytes / self.seconds

    @property
    def cpu_seconds_per_gb(self) -> float:
        return self.cpu_seconds / (self.moved_bytes / 1e9)


class Traffic:
    """A closed loop: whenever a step ends, the next one begins."""

    def __init__(self, depth: int, patience_seconds: float, interruption: Interruption) -> None:
        """`patience_seconds`: how long nothing at all may end before that is a failure."""
        self._depth = depth
        self._patience_seconds = patience_seconds
        self._interruption = interruption

    def run(self, lane: Lane, steps: Sequence[Step]) -> Sample | None:
        """All of these steps.  None when it was interrupted: what was on its way has ended then.  Raises BenchFailedError
        for the first step that fails, once nothing is on its way, and when nothing ends for too long."""
        counted, cpu, started = _device_read_bytes(), _cpu_seconds(), time.perf_counter()
        latencies = self._run(lane, steps)
        seconds, spent, delivered = time.perf_counter() - started, _cpu_seconds() - cpu, _device_read_bytes()
        if len(latencies) < len(steps):
            return None
        from_device = None if counted is None or delivered is None else delivered - counted
        return Sample(sum(step.buffer.length for step in steps), seconds, spent, tuple(latencies), from_device)

    def _run(self, lane: Lane, steps: Sequence[Step]) -> list[float]:
        poll = select.poll()
        poll.register(lane.fileno(), select.POLLIN)
        waiting = iter(steps)
        under_way: dict[int, tuple[Step, float]] = {}
        latencies: list[float] = []
        fault: BenchFailedError | None = None
        while True:
            if fault is None and not self._interruption.asked:
                self._fill(lane, under_way, waiting)
            if not under_way:
                break
            for end in self._wait(lane, poll, len(under_way)):
                step, started = under_way.pop(end.token)
                latencies.append(time.perf_counter() - started)
                if end.fault is not None and fault is None:
                    what = f"{step.verb.value} of an object of {size_text(step.buffer.length)}"
                    fault = BenchFailedError(f"{lane.name}: {what}: {end.fault}")
        if fault is not None:
            raise fault
        return latencies

    def _fill(self, lane: Lane, under_way: dict[int, tuple[Step, float]], waiting: Iterator[Step]) -> None:
        if batch := list(islice(waiting, self._depth - len(under_way))):
            now = time.perf_counter()
            under_way.update((step.token, (step, now)) for step in batch)
            lane.start(batch)

    def _wait(self, lane: Lane, poll: select.poll, count: int) -> Sequence[Ended]:
        end = time.monotonic() + self._patience_seconds
        while time.monotonic() < end:
            if poll.poll(_LOOK_SECONDS * 1000) and (ended := lane.ended()):
                return ended
        raise BenchFailedError(
            f"{lane.name}: nothing has ended within {self._patience_seconds:g} s, with {count} objects on their way; "
            "see whether what it depends on answers, or raise --timeout-seconds"
        )


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _device_read_bytes() -> int | None:
    try:
        lines = _IO_COUNTS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes:")), None)
