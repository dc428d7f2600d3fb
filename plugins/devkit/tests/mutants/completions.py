"""Jobs that are answered wrongly."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from lmcache_core import AdapterContext, BuffersReleased, Completion, CompletionSource, JobDone
from plugins.devkit.tests.mutants.file_adapter import FileAdapter, FileSettings, killed_by


class Tampered(CompletionSource):
    def __init__(self, inner: CompletionSource, change: Callable[[Sequence[Completion]], list[Completion]]) -> None:
        self.inner, self.change = inner, change

    def fileno(self) -> int:
        return self.inner.fileno()

    def drain(self) -> Sequence[Completion]:
        return self.change(self.inner.drain())


class TampersWithCompletions(FileAdapter):
    def __init__(self, settings: FileSettings, context: AdapterContext) -> None:
        super().__init__(settings, context)
        self.tampered = Tampered(super().completions(), self.tamper)

    def completions(self) -> CompletionSource:
        return self.tampered

    def tamper(self, completions: Sequence[Completion]) -> list[Completion]:
        raise NotImplementedError


@killed_by("each_job_is_answered_once_and_then_the_descriptor_is_quiet")
class LostCompletion(TampersWithCompletions):
    def tamper(self, completions: Sequence[Completion]) -> list[Completion]:
        return [completion for completion in completions if completion.job % 7 != 3]


@killed_by("each_job_is_answered_once_and_then_the_descriptor_is_quiet")
class DoubleCompletion(TampersWithCompletions):
    def tamper(self, completions: Sequence[Completion]) -> list[Completion]:
        return [completion for completion in completions for _ in range(2 if completion.job % 7 == 3 else 1)]


@killed_by("outcomes_stand_in_the_order_of_the_keys")
class OutcomesInTheWrongOrder(TampersWithCompletions):
    def tamper(self, completions: Sequence[Completion]) -> list[Completion]:
        return [
            replace(completion, outcomes=completion.outcomes[::-1]) if isinstance(completion, JobDone) else completion
            for completion in completions
        ]


@killed_by("close_answers_every_job_of_a_backend_that_does_not_answer")
class ReleasedWhileInUse(TampersWithCompletions):
    def tamper(self, completions: Sequence[Completion]) -> list[Completion]:
        kept = [completion for completion in completions if not isinstance(completion, BuffersReleased)]
        return [replace(completion, released=True) for completion in kept]


@killed_by("buffers_are_released_once")
class ReleasedTwice(TampersWithCompletions):
    def tamper(self, completions: Sequence[Completion]) -> list[Completion]:
        return [each for completion in completions for each in (completion, BuffersReleased(completion.job))]


@killed_by("the_descriptor_is_readable_while_something_waits_and_quiet_after_a_drain")
class DescriptorNeverQuiet(FileAdapter):
    def __init__(self, settings: FileSettings, context: AdapterContext) -> None:
        super().__init__(settings, context)
        self.loud = Tampered(super().completions(), list)
        self.fd = os.eventfd(1)
        self.loud.fileno = lambda: self.fd  # type: ignore[method-assign]

    def completions(self) -> CompletionSource:
        return self.loud

    def stopped(self) -> None:
        os.close(self.fd)


@killed_by("each_key_of_a_load_has_its_own_outcome")
class OneOutcomeForAll(TampersWithCompletions):
    def tamper(self, completions: Sequence[Completion]) -> list[Completion]:
        return [
            replace(completion, outcomes=completion.outcomes[:1] * len(completion.outcomes))
            if isinstance(completion, JobDone)
            else completion
            for completion in completions
        ]


@killed_by("a_batch_of_nothing_is_answered")
class NothingIsNotAJob(TampersWithCompletions):
    def tamper(self, completions: Sequence[Completion]) -> list[Completion]:
        return [each for each in completions if not isinstance(each, JobDone) or each.outcomes]


@killed_by("close_without_time_answers_every_job")
class ClosingForgetsJobs(TampersWithCompletions):
    closing = False

    def close(self, deadline_seconds: float) -> None:
        self.closing = True
        super().close(deadline_seconds)

    def tamper(self, completions: Sequence[Completion]) -> list[Completion]:
        return [each for each in completions if not (self.closing and isinstance(each, JobDone))]
