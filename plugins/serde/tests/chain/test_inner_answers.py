"""Whatever an adapter inside answers, every job that it was given is answered, and no thread polls in a busy loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lmcache_core.contracts.completion import BuffersReleased, Completion, JobDone, JobId
from lmcache_core.jobs.queues import CompletionQueue
from lmcache_core.model.results import Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context
from lmcache_devkit.l2_driver import L2Driver
from lmcache_serde.chain import inner_answers
from plugins.serde.tests.chain.heap_case import KEY, PAYLOAD
from plugins.serde.tests.chain.serdes import MIB, chain_of, wrapped
from plugins.serde.tests.chain.slow_adapter import SlowAdapter

DONE, FAILED = Outcome.DONE, Outcome.FAILED
Answers = Callable[[JobId], Sequence[Any]]


class Babbling(SlowAdapter):
    """Answers each job at once as scripted."""

    def __init__(self, answers: Answers) -> None:
        super().__init__()
        self._answers = answers

    def _submit(self, work: Callable[[], tuple[Outcome, ...]], buffers: list[Any]) -> JobId:
        job = JobId(next(self._ids))
        for answer in self._answers(job):
            self._queue.post(answer)
        return job


def around(inner: SlowAdapter, memory: BorrowedMemory) -> L2Driver:
    return L2Driver(wrapped(adapter_context(memory), lambda own: inner, chain_of("xor"), memory_bytes=MIB))


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        (lambda job: [JobDone(job, None)], FAILED),  # type: ignore[arg-type]
        (lambda job: [JobDone(job, ())], FAILED),
        (lambda job: [JobDone(job, (DONE, DONE))], FAILED),
        (lambda job: [JobDone(job, ("done",))], FAILED),  # type: ignore[arg-type]
        (lambda job: [BuffersReleased(job)], FAILED),
        (lambda job: ["rubbish", JobDone(job, (DONE,))], DONE),
        (lambda job: [JobDone([], (FAILED,)), JobDone(job, (DONE,))], DONE),  # type: ignore[arg-type]
        (lambda job: [JobDone(JobId(99), (FAILED,)), JobDone(job, (DONE,)), JobDone(job, (FAILED,))], DONE),
    ],
    ids=["none", "too few", "too many", "no outcome", "only a release", "no completion", "no job", "others"],
)
def test_a_job_is_answered_whatever_comes(answers: Answers, outcome: Outcome) -> None:
    memory = BorrowedMemory(MIB)
    driver = around(Babbling(answers), memory)
    assert driver.store((KEY, memory.sealed(KEY, PAYLOAD))) == (outcome,)
    driver.close(5.0)


def test_answers_are_heard_after_they_could_not_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner_answers, "_PERIOD_SECONDS", 0.01)
    drain, faults = CompletionQueue.drain, [True, True]
    memory, inner = BorrowedMemory(MIB), Babbling(lambda job: [JobDone(job, (DONE,))])

    def failing(queue: CompletionQueue) -> Sequence[Completion]:
        if queue is inner.completions() and faults:
            faults.pop()
            raise OSError("injected")
        return drain(queue)

    monkeypatch.setattr(CompletionQueue, "drain", failing)
    driver = around(inner, memory)
    assert driver.store((KEY, memory.sealed(KEY, PAYLOAD))) == (DONE,)
    assert not faults
    driver.close(5.0)
