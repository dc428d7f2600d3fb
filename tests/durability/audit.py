"""The process that opens the medium after a kill, and says what is not as the journal has it."""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmcache_core import BorrowedBuffer, L2Adapter, Outcome, Usage
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context
from lmcache_devkit.offer_under_test import OpenableOffer
from tests.durability.answers import Answers
from tests.durability.journal import OBJECTS, Entry, Journal, State
from tests.durability.numbered_objects import OBJECT_BYTES_MAX, fault_of, key_of, length_of, number_of

RECOVERY_SECONDS: Final = 60.0
BATCH: Final = 16
PAGE_KEYS: Final = 20


@dataclass(frozen=True, slots=True)
class AuditTask:
    """The faults are written to `report`, as a list.  Then the process ends in an orderly way, or it kills itself, so that the
    next one finds a medium that was not closed."""

    opener: OpenableOffer
    journal: Path
    report: Path
    orderly: bool


def run(task: AuditTask) -> None:
    """Also decides what the journal was in doubt about."""
    memory = BorrowedMemory(BATCH * (OBJECT_BYTES_MAX + 4096))
    journal = Journal(task.journal)
    try:
        adapter = task.opener.open(adapter_context(memory, name=task.opener.offer.name))
        answers = Answers(adapter)
        audit = _Audit(adapter, answers, journal, memory)
        faults = [*audit.while_it_recovers(), *audit.when_it_has_recovered()]
        if not task.orderly:
            task.report.write_text(json.dumps(faults))
            os.kill(os.getpid(), signal.SIGKILL)
        answers.close()
        adapter.close(10.0)
        task.report.write_text(json.dumps(faults))
    except BaseException:
        task.report.write_text(json.dumps([traceback.format_exc()]))
        raise


class _Audit:
    def __init__(self, adapter: L2Adapter, answers: Answers, journal: Journal, memory: BorrowedMemory) -> None:
        self._adapter = adapter
        self._answers = answers
        self._journal = journal
        self._buffers = [memory.lend(OBJECT_BYTES_MAX) for _ in range(BATCH)]

    def while_it_recovers(self) -> Iterator[str]:
        """It serves from the start: what is gone stays gone, and what is there is whole.  It may be missed only for as long as
        the adapter says that it does not know its usage."""
        may_miss = self._adapter.usage() is None
        yield from self._whole("at once", self._journal.numbers(State.PRESENT), may_miss=may_miss)
        for number, outcome, _ in self._loaded(self._journal.numbers(State.ABSENT)):
            if outcome is Outcome.DONE:
                yield f"at once: object {number} was deleted, or never stored, and is loaded"

    def when_it_has_recovered(self) -> Iterator[str]:
        """Index, listing and usage are what the journal says, and each object is whole."""
        usage = self._usage()
        listed = Counter(self._listed())
        found = self._found()
        yield from (f"object {number} is listed {times} times" for number, times in listed.items() if times > 1)
        if set(listed) != found:
            yield f"listed and not found: {sorted(set(listed) - found)}; the other way round: {sorted(found - set(listed))}"
        for state, wrong in (
            (State.PRESENT, set(self._journal.numbers(State.PRESENT)) - found),
            (State.ABSENT, set(self._journal.numbers(State.ABSENT)) & found),
        ):
            yield from (f"object {number} is {state.name} by its outcome, and it is not so" for number in sorted(wrong))
        yield from self._whole("after recovery", sorted(found))
        stored = sum(length_of(number, self._journal[number].version) for number in found)
        if usage is None or (usage.objects, usage.used_bytes) != (len(found), stored):
            yield f"usage is {usage}, and {len(found)} objects of {stored} bytes are there"
        for number in self._journal.numbers(State.STORING, State.DELETING):
            state = State.PRESENT if number in found else State.ABSENT
            self._journal[number] = Entry(state, self._journal[number].version)

    def _usage(self) -> Usage | None:
        """None where it is never known."""
        end = time.monotonic() + RECOVERY_SECONDS
        while (usage := self._adapter.usage()) is None and time.monotonic() < end:
            time.sleep(0.005)
        return usage

    def _listed(self) -> Iterator[int]:
        cursor: str | None = None
        while True:
            page = self._adapter.list_keys(cursor, PAGE_KEYS)
            yield from map(number_of, page.keys)
            if (cursor := page.cursor) is None:
                return

    def _found(self) -> set[int]:
        keys = [key_of(number) for number in range(OBJECTS)]
        outcomes = self._answers.lookup(keys)
        found = [key for key, outcome in zip(keys, outcomes, strict=True) if outcome is Outcome.DONE]
        self._answers.unpin(found)
        return set(map(number_of, found))

    def _whole(self, when: str, numbers: Sequence[int], *, may_miss: bool = False) -> Iterator[str]:
        for number, outcome, buffer in self._loaded(numbers):
            if may_miss and outcome is Outcome.MISSING:
                continue
            if outcome is not Outcome.DONE:
                yield f"{when}: loading object {number} is {outcome}"
            elif fault := fault_of(buffer, number, self._journal[number].version):
                yield f"{when}: object {number}: {fault}"

    def _loaded(self, numbers: Sequence[int]) -> Iterator[tuple[int, Outcome, BorrowedBuffer]]:
        for at in range(0, len(numbers), BATCH):
            part = numbers[at : at + BATCH]
            items = []
            for number, buffer in zip(part, self._buffers, strict=False):
                length = length_of(number, self._journal[number].version)
                buffer.view[:length] = bytes(length)
                items.append((key_of(number), BorrowedBuffer(buffer.region, buffer.offset, length)))
            outcomes = self._answers.load(items)
            yield from zip(part, outcomes, (buffer for _, buffer in items), strict=True)
