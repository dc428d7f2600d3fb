"""The process that is killed: stores, loads, deletes and evicts on several threads, and keeps the journal."""

from __future__ import annotations

import random
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmcache_core import BorrowedBuffer, L2Adapter, Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context
from lmcache_devkit.offer_under_test import OpenableOffer
from tests.durability.answers import Answers
from tests.durability.journal import OBJECTS, Entry, Journal, Phase, State
from tests.durability.numbered_objects import OBJECT_BYTES_MAX, fault_of, fill, key_of, length_of

THREADS: Final = 4
BATCH_MAX: Final = 4
CLOSE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class LoadTask:
    """`close_after` batches the adapter is closed, while others are under way; None: never.  A fault that the process finds
    itself is written to `fault`."""

    opener: OpenableOffer
    journal: Path
    fault: Path
    seed: int
    close_after: int | None


def run(task: LoadTask) -> None:
    """Work until killed, or until the adapter is closed."""
    journal = Journal(task.journal)
    try:
        _work(task, journal)
    except BaseException:
        task.fault.write_text(traceback.format_exc())
        raise


def _work(task: LoadTask, journal: Journal) -> None:
    memory = BorrowedMemory(THREADS * BATCH_MAX * (OBJECT_BYTES_MAX + 4096))
    journal.phase = Phase.OPENING
    adapter = task.opener.open(adapter_context(memory, name=task.opener.offer.name))
    answers = Answers(adapter)
    journal.phase = Phase.WORKING
    faults: list[str] = []
    enough = threading.Event()

    def work(worker: _Worker) -> None:
        try:
            while journal.phase is Phase.WORKING:
                worker.step()
                journal.count()
                if task.close_after is not None and journal.operations >= task.close_after:
                    enough.set()
        except _ClosingError:
            pass
        except BaseException:  # noqa: BLE001 - the main thread raises it
            faults.append(traceback.format_exc())
        finally:
            enough.set()

    workers = [
        _Worker(adapter, answers, journal, memory, random.Random(f"{task.seed} {index}"), index)
        for index in range(THREADS)
    ]
    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    enough.wait()
    journal.phase = Phase.CLOSING
    adapter.close(CLOSE_SECONDS)
    for thread in threads:
        thread.join()
    if faults:
        raise AssertionError(faults[0])
    journal.phase = Phase.CLOSED


class _ClosingError(Exception):
    """The adapter is being closed, and answers nothing any more."""


class _Worker:
    """The work of one thread, on objects of its own.  An adapter may miss what was there before it was opened for as long as
    it says that it does not know its usage."""

    def __init__(
        self,
        adapter: L2Adapter,
        answers: Answers,
        journal: Journal,
        memory: BorrowedMemory,
        rng: random.Random,
        index: int,
    ) -> None:
        self._adapter = adapter
        self._answers = answers
        self._journal = journal
        self._rng = rng
        self._numbers = range(index, OBJECTS, THREADS)
        self._buffers = [memory.lend(OBJECT_BYTES_MAX) for _ in range(BATCH_MAX)]

    def step(self) -> None:
        """One batch of one kind.  Raises AssertionError for an answer that cannot be right."""
        verb: Callable[[], None] = self._rng.choice((self._store, self._store, self._delete, self._load))
        verb()

    def _store(self) -> None:
        numbers = self._some(State.ABSENT)
        items = []
        for number, buffer in zip(numbers, self._buffers, strict=False):
            version = self._journal[number].version + 1
            part = _cut(buffer, length_of(number, version))
            fill(part, number, version)
            items.append((key_of(number), part))
            self._journal[number] = Entry(State.STORING, version)
        outcomes = self._answers.store(items)
        for number, outcome in zip(numbers, outcomes, strict=True):
            match outcome:
                case Outcome.DONE:
                    self._set_state(number, State.PRESENT)
                case Outcome.REJECTED:
                    self._set_state(number, State.ABSENT)
                case _:
                    self._doubt(f"storing object {number}", outcome)
        if Outcome.REJECTED in outcomes:
            self._evict()

    def _evict(self) -> None:
        """What the server does with a backend that is full."""
        there = self._own(State.PRESENT)
        self._remove(self._rng.sample(there, -(-len(there) // 3)))

    def _delete(self) -> None:
        self._remove(self._some(State.PRESENT))

    def _remove(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._set_state(number, State.DELETING)
        may_miss = self._adapter.usage() is None
        outcomes = self._answers.delete([key_of(number) for number in numbers])
        for number, outcome in zip(numbers, outcomes, strict=True):
            if outcome is Outcome.DONE:
                self._set_state(number, State.ABSENT)
            elif not (may_miss and outcome is Outcome.MISSING):  # that one is for the audit to settle
                self._doubt(f"deleting object {number}", outcome)

    def _load(self) -> None:
        numbers = self._found(self._some(State.PRESENT))
        keys = [key_of(number) for number in numbers]
        versions = [self._journal[number].version for number in numbers]
        buffers = [
            _cut(buffer, length_of(number, version))
            for number, version, buffer in zip(numbers, versions, self._buffers, strict=False)
        ]
        outcomes = self._answers.load(list(zip(keys, buffers, strict=True)))
        self._answers.unpin(keys)
        for number, version, buffer, outcome in zip(numbers, versions, buffers, outcomes, strict=True):
            if outcome is not Outcome.DONE:
                self._doubt(f"loading object {number}", outcome)
            fault = fault_of(buffer, number, version)
            assert fault is None, f"object {number}: {fault}"

    def _found(self, numbers: Sequence[int]) -> list[int]:
        """They are pinned."""
        may_miss = self._adapter.usage() is None
        outcomes = self._answers.lookup([key_of(number) for number in numbers])
        for number, outcome in zip(numbers, outcomes, strict=True):
            if outcome is not Outcome.DONE and not (may_miss and outcome is Outcome.MISSING):
                self._doubt(f"looking object {number} up", outcome)
        return [number for number, outcome in zip(numbers, outcomes, strict=True) if outcome is Outcome.DONE]

    def _set_state(self, number: int, state: State) -> None:
        self._journal[number] = Entry(state, self._journal[number].version)

    def _doubt(self, what: str, outcome: Outcome) -> None:
        """Only a backend that is being closed may fail; what became of the object is then not known."""
        if outcome is Outcome.FAILED and self._journal.phase is Phase.CLOSING:
            raise _ClosingError
        raise AssertionError(f"{what} is {outcome}")

    def _own(self, state: State) -> list[int]:
        return [number for number in self._numbers if self._journal[number].state is state]

    def _some(self, state: State) -> list[int]:
        there = self._own(state)
        return self._rng.sample(there, min(len(there), self._rng.randint(1, BATCH_MAX)))


def _cut(buffer: BorrowedBuffer, length: int) -> BorrowedBuffer:
    return BorrowedBuffer(buffer.region, buffer.offset, length)
