"""An L2 adapter from methods that each deal with one object: what `BlockingL2Adapter` and `AsyncL2Adapter` share."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from lmcache_core import (
    AdapterContext,
    BorrowedBuffer,
    CircuitState,
    CircuitStatus,
    CompletionQueue,
    CompletionSource,
    FaultLog,
    Job,
    JobId,
    JobTable,
    KeyPage,
    L2Adapter,
    LoadItem,
    ObjectKey,
    Outcome,
    StoreItem,
    Usage,
)
from lmcache_l2_adapter.backend_calls import Author, BackendCalls, CircuitBreaker, RetryPolicy
from lmcache_l2_adapter.executor import Executor, Task
from lmcache_l2_adapter.object_verbs import ObjectGuard, ObjectVerbs

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

    def time_out(self) -> None:
        self._table.report(self._job, self._index, Outcome.TIMED_OUT)


class LookupTask(ObjectTask):
    """Takes the pin back where another outcome was reported."""

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

    def time_out(self) -> None:
        for task in self._tasks[self._ended :]:
            task.time_out()


class UnreportedTask(Task):
    """Work that no job waits for."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, Outcome]]) -> None:
        self._work = work

    def run(self) -> Coroutine[Any, Any, Outcome]:
        return self._work()

    def settle(self, outcome: Outcome) -> bool:
        return True

    def time_out(self) -> None:
        pass


LOOKUPS_TOGETHER: Final = 64
"""Where lookups are answered from memory, this many are one task of an event loop: about a millisecond, for which transfers
wait.  A task for each would cost more than its answer."""


class ObjectL2Adapter(L2Adapter):
    """Batches become tasks of an executor; their outcomes become one completion per job.  Subclass one of the two."""

    max_object_bytes: int | None = None
    """A longer object is REJECTED without asking `store`.  None: no limit."""
    contains_is_local: bool = False
    """True: `contains` answers from an index in memory and asks no backend.  Lookups then say nothing about the backend:
    they go through while it is left alone, neither count as its failures nor as its answers, and are not retried.  On an
    event loop they are asked one after the other, `LOOKUPS_TOGETHER` in a task, so let few of them wait.  With
    False, an index in memory would vouch for a backend that is down, and the breaker would never open."""

    def __init__(
        self, context: AdapterContext, executor: Executor, breaker: CircuitBreaker | None, retry: RetryPolicy | None
    ) -> None:
        self.context: Final = context
        self.__executor = executor
        self.__queue = CompletionQueue()
        self.__jobs = JobTable(self.__queue)
        self.__guard = ObjectGuard()
        # A medium that can only be read fails every store, and must not be left alone by loads for that.
        self.__reads = breaker or CircuitBreaker(context.clock)
        self.__writes = breaker or CircuitBreaker(context.clock)
        self.__faults = FaultLog(context.logger, context.clock, f"adapter={context.name}")
        retry = retry or RetryPolicy()
        reads = BackendCalls(executor, self.__faults, self.__reads, retry)
        writes = BackendCalls(executor, self.__faults, self.__writes, retry)
        self.__verbs = ObjectVerbs(self.__guard, reads, writes, executor)
        self.__closed = threading.Lock()  # held from the first `close` on

    # What an author writes.

    @abstractmethod
    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome | Awaitable[Outcome]: ...

    @abstractmethod
    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome | Awaitable[Outcome]: ...

    @abstractmethod
    def contains(self, key: ObjectKey) -> bool | Awaitable[bool]: ...

    @abstractmethod
    def delete(self, key: ObjectKey) -> Outcome | Awaitable[Outcome]: ...

    @abstractmethod
    def discard(self, key: ObjectKey, outcome: Outcome) -> bool | Awaitable[bool]: ...

    def is_transient(self, error: Exception) -> bool:
        """True where what a method raised may pass by itself.  Then it is called again, up to twice and within a budget, so
        each method must be safe to repeat."""
        return isinstance(error, (TimeoutError, ConnectionError))

    def usage(self) -> Usage | None:
        return None

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        return KeyPage((), None)

    # What follows from it.

    @property
    def in_flight(self) -> int:
        """Objects whose job was not answered yet: the backlog."""
        return self.__jobs.in_flight

    @property
    def circuit(self) -> CircuitStatus:
        """Is the backend being asked?  Reading and writing have a breaker each (but where an author gives one for both);
        this is the worse of the two."""
        both = (self.__reads.status, self.__writes.status)
        return max(both, key=lambda status: (status.state is not CircuitState.CLOSED, status.failures_in_a_row))

    def completions(self) -> CompletionSource:
        if not hasattr(self, "context"):
            raise RuntimeError("__init__ never called super().__init__(context, ...)")
        return self.__queue

    def submit_store(self, batch: Sequence[StoreItem]) -> JobId:
        job = self.__jobs.open(len(batch), lends_buffers=True)
        return self.__start(self.__executor.submit, job, ObjectTask, self.__verbs.store, batch)

    def submit_load(self, batch: Sequence[LoadItem]) -> JobId:
        job = self.__jobs.open(len(batch), lends_buffers=True)
        return self.__start(self.__executor.submit_urgent, job, ObjectTask, self.__verbs.load, batch)

    def submit_delete(self, keys: Sequence[ObjectKey]) -> JobId:
        job = self.__jobs.open(len(keys), lends_buffers=False)
        return self.__start(self.__executor.submit, job, ObjectTask, self.__verbs.delete, keys)

    def submit_lookup(self, keys: Sequence[ObjectKey]) -> JobId:
        job = self.__jobs.open(len(keys), lends_buffers=False)
        together = self.contains_is_local and self.__executor.awaits
        submit = self.__submit_together if together else self.__executor.submit_lookups
        return self.__start(submit, job, LookupTask, self.__verbs.lookup, keys)

    def unpin(self, keys: Sequence[ObjectKey]) -> None:
        self.__guard.unpin(key.object_id for key in keys)

    def reject(self, key: ObjectKey, outcome: Outcome) -> None:
        """Takes effect at once for lookups and loads; `discard` follows where stores run.  Where it does not come to
        that, or fails, the next `reject` or store of the key tries again."""
        if self.__guard.quarantine(key.object_id, outcome):
            self.__executor.submit([UnreportedTask(partial(self.__verbs.discard, self, key))])

    def close(self, deadline_seconds: float) -> None:
        """Stop.  What was not started by the deadline is FAILED; what is still running then is FAILED too, keeps its
        buffers, and a `BuffersReleased` follows when it has ended.  Calling it again only waits, at most that long,
        until that has happened and what was opened is given back."""
        if not self.__closed.acquire(blocking=False):
            self.__executor.wait_stopped(deadline_seconds)
            return
        try:
            for task in self.__executor.close(deadline_seconds):
                task.settle(Outcome.FAILED)
        finally:  # whatever happens, every job is answered
            if stuck := self.__jobs.abandon():
                self.context.logger.error(
                    "l2 adapter did not stop adapter=%s deadline_seconds=%.1f objects=%d; their buffers stay borrowed",
                    self.context.name, deadline_seconds, stuck,
                )  # fmt: skip

    # How.

    def __submit_together(self, lookups: Sequence[Task]) -> bool:
        starts = range(0, len(lookups), LOOKUPS_TOGETHER)
        return self.__executor.submit_lookups([TaskRun(lookups[at : at + LOOKUPS_TOGETHER]) for at in starts])

    def __start(
        self,
        submit: Callable[[Sequence[Task]], bool],
        job: Job,
        kind: type[ObjectTask],
        verb: Verb,
        subjects: Sequence[Any],
    ) -> JobId:
        table = self.__jobs
        tasks = [kind(table, verb, self, job, index, subject) for index, subject in enumerate(subjects)]
        if tasks and not submit(tasks):
            for task in tasks:
                task.settle(Outcome.FAILED)
        return job.id
