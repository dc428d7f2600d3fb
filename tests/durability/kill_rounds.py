"""Kills a working process again and again, and looks at what it left behind."""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from lmcache_devkit.offer_under_test import OpenableOffer
from tests.durability import audit, load_process
from tests.durability.audit import AuditTask
from tests.durability.journal import Journal, Phase, State
from tests.durability.load_process import LoadTask

START_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.0002
OPERATIONS_MAX: Final = 150
"""A process is killed, or closes its adapter, at the latest after that number of batches."""
OPENING_SECONDS: Final = 0.05
CLOSING_SECONDS: Final = 0.006
JITTER_SECONDS: Final = 0.003
"""So long at most after the phase has begun, or the last batch was answered, the kill comes."""

Medium = Callable[[], Counter[int]]
"""How often each object is on the medium, by a look of one's own.  Raises AssertionError for what has no business there."""


class KillRounds:
    """One medium, which many processes use one after the other.  What each of them was killed in is counted in `killed_in`."""

    def __init__(self, opener: OpenableOffer, medium: Medium, folder: Path, seed: int) -> None:
        self.killed_in: Counter[Phase] = Counter()
        self._opener = opener
        self._medium = medium
        self._folder = folder
        self._rng = random.Random(seed)
        self._journal = Journal.create(folder / "journal")
        # A server that has everything imported, and forks: a process that is killed is cheap then.
        self._processes = multiprocessing.get_context("forkserver")
        opening = opener.offer.open.partition(":")[0]
        self._processes.set_forkserver_preload(["pytest", load_process.__name__, audit.__name__, opening])

    def run(self, rounds: int) -> None:
        """Raises AssertionError with every fault of the first round that has one."""
        for number in range(rounds):
            phase = self._kill()
            self.killed_in[phase] += 1
            if faults := [*self._audited(orderly=number % 3 == 0), *self._on_the_medium()]:
                listing = "\n".join(faults[:12])
                raise AssertionError(
                    f"{len(faults)} faults after kill {number}, which came while {phase.name}:\n{listing}"
                )

    def close(self) -> None:
        self._journal.close()

    def _kill(self) -> Phase:
        """In which phase did it die?"""
        phase = self._rng.choices((Phase.OPENING, Phase.WORKING, Phase.CLOSING), (1, 2, 1))[0]
        operations = self._rng.randrange(OPERATIONS_MAX)
        fault = self._folder / "fault"
        close_after = operations if phase is Phase.CLOSING else None
        task = LoadTask(self._opener, self._folder / "journal", fault, self._rng.getrandbits(32), close_after)
        self._journal.begin()
        with self._process(load_process.run, task) as process:
            self._wait_for(process, lambda: self._has_come_to(phase, operations))
            longest = {Phase.OPENING: OPENING_SECONDS, Phase.CLOSING: CLOSING_SECONDS}.get(phase, JITTER_SECONDS)
            time.sleep(self._rng.uniform(0, longest))
            process.kill()
        if fault.exists():
            raise AssertionError(f"the process has found a fault itself:\n{fault.read_text()}")
        return self._journal.phase

    def _has_come_to(self, phase: Phase, operations: int) -> bool:
        if phase is Phase.WORKING:
            return self._journal.phase is phase and self._journal.operations >= operations
        return self._journal.phase >= phase

    def _audited(self, *, orderly: bool) -> list[str]:
        report = self._folder / "report"
        report.unlink(missing_ok=True)
        with self._process(audit.run, AuditTask(self._opener, self._folder / "journal", report, orderly)) as process:
            process.join()
        assert report.exists(), f"the audit has ended with {process.exitcode} and said nothing"
        faults: list[str] = json.loads(report.read_text())
        return faults

    def _on_the_medium(self) -> Iterator[str]:
        try:
            there = self._medium()
        except AssertionError as error:
            yield f"on the medium: {error}"
            return
        yield from (f"object {number} is on the medium {times} times" for number, times in there.items() if times > 1)
        if wrong := set(there) ^ set(self._journal.numbers(State.PRESENT)):
            yield f"objects on the medium and not in the index, or the other way round: {sorted(wrong)}"

    @contextmanager
    def _process(self, target: Callable[[Any], None], task: object) -> Iterator[BaseProcess]:
        """It does not outlive the block."""
        process = self._processes.Process(target=target, args=(task,), daemon=True)
        process.start()
        try:
            yield process
        finally:
            process.kill()
            process.join()
            process.close()

    @staticmethod
    def _wait_for(process: BaseProcess, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + START_SECONDS
        while process.is_alive() and not condition():
            assert time.monotonic() < end, "the process does not get on"
            time.sleep(POLL_SECONDS)
