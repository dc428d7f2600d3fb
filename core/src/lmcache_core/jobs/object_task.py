"""Work on one object, as an executor sees it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from lmcache_core.jobs.author import Author
from lmcache_core.jobs.executor import Task
from lmcache_core.jobs.job_table import Job, JobTable
from lmcache_core.model.results import Outcome

Verb = Callable[[Author, Job, Any], Coroutine[Any, Any, Outcome]]


class ObjectTask(Task):
    """A verb for one object, the `index`th of its job."""

    __slots__ = ("_author", "_index", "_job", "_subject", "_table", "_verb")

    def __init__(self, table: JobTable, verb: Verb, author: Author, job: Job, index: int, subject: Any) -> None:
        self._table = table
        self._verb = verb
        self._author = author
        self._job = job
        self._index = index
        self._subject = subject

    def run(self) -> Coroutine[Any, Any, Outcome]:
        return self._verb(self._author, self._job, self._subject)

    def settle(self, outcome: Outcome) -> bool:
        return self._table.settle(self._job, self._index, outcome)

    def give_up(self) -> None:
        self._table.give_up(self._job, self._index, Outcome.TIMED_OUT)


class LookupTask(ObjectTask):
    """Takes the pin back where nobody was told of it."""

    __slots__ = ()

    def settle(self, outcome: Outcome) -> bool:
        reported = self._table.settle(self._job, self._index, outcome)
        if not reported and outcome is Outcome.DONE:
            self._author.unpin((self._subject,))
        return reported


class TaskRun(Task):
    """Several tasks that hardly ever wait, one after the other, as one piece of work.  Where it is cut short, so are those
    that have not ended."""

    __slots__ = ("_ended", "_tasks")

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._ended = 0

    async def run(self) -> Outcome:
        for task in self._tasks:
            outcome = await task.run()
            self._ended += 1
            task.settle(outcome)
        return Outcome.DONE

    def settle(self, outcome: Outcome) -> bool:
        for task in self._tasks[self._ended :]:
            task.settle(outcome)
        return True

    def give_up(self) -> None:
        for task in self._tasks[self._ended :]:
            task.give_up()


class UnreportedTask(Task):
    """Work that no job waits for."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, Outcome]]) -> None:
        self._work = work

    def run(self) -> Coroutine[Any, Any, Outcome]:
        return self._work()

    def settle(self, outcome: Outcome) -> bool:
        return True

    def give_up(self) -> None:
        pass
