"""Queues that a thread can poll: messages between core's threads, with the loop that handles them, and the completions of an
adapter's jobs."""

from __future__ import annotations

import itertools
import os
import select
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from lmcache_core.contracts.completion import BuffersReleased, Completion, CompletionSource, JobDone, JobId
from lmcache_core.model.results import Outcome

Item = TypeVar("Item")


class Inbox(Generic[Item]):
    """Posted from any thread, drained by one.  Its descriptor polls readable while something is waiting."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._awake = False
        """The descriptor is readable, or will be before `post` returns."""

    def __len__(self) -> int:
        return len(self._items)

    def fileno(self) -> int:
        return self._event

    def post(self, item: Item) -> None:
        self._items.append(item)
        self.wake()

    def wake(self) -> None:
        """Make the descriptor readable without posting anything.  A closed inbox ignores it."""
        if self._event >= 0 and not self._awake:
            self._awake = True
            os.eventfd_write(self._event, 1)

    def clear_wakes(self) -> None:
        """Make the descriptor unreadable.  To be called before items are taken: what is posted later wakes the next poll.
        A closed inbox has none."""
        if self._event >= 0:
            try:
                os.eventfd_read(self._event)
            except BlockingIOError:
                pass
        self._awake = False  # after the read: a wake that is skipped until here is for what the caller takes next

    def take(self) -> Item | None:
        """The oldest item, or None.  Never blocks."""
        try:
            return self._items.popleft()
        except IndexError:
            return None

    def drain(self) -> list[Item]:
        """Everything that is waiting, oldest first.  Never blocks."""
        self.clear_wakes()
        items = []
        while (item := self.take()) is not None:
            items.append(item)
        return items

    def close(self) -> None:
        event, self._event = self._event, -1
        if event >= 0:
            os.close(event)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # A post may follow the end of who drains it, so an inbox can outlive that and goes with its last owner.
        if not ending():  # os is empty by then, and the kernel closes what is open
            self.close()


Message = TypeVar("Message")


class PendingCall:
    """A function that another thread has passed to `MessageLoop.call_soon`."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._over = threading.Event()
        self.failed = False

    def make(self) -> None:
        """On the controller's thread.  Raises what the function raises."""
        try:
            self._function()
        except BaseException:
            self.failed = True
            raise
        finally:
            self._over.set()

    def wait(self, seconds: float) -> bool:
        """Wait until it has been called.  False after this time; it is called later."""
        return self._over.wait(seconds)


class MessageLoop(ABC, Generic[Message]):
    """Handles what is posted, one message at a time, on the thread whose body is `run`.

    A message that cannot be handled is aborted, so that its references and pins are released, before the failure
    goes on to the supervisor; the messages behind it wait for the thread to be started again."""

    def __init__(self) -> None:
        self._inbox: Inbox[Message | PendingCall] = Inbox()
        self._stop = False

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._inbox, select.POLLIN)
        self._resume()
        while not self._stop:
            self.cycle()
            seconds = self._timeout_seconds()
            poll.poll(None if seconds is None else seconds * 1000 + 1)

    def stop(self) -> None:
        """End `run`.  Any thread."""
        self._stop = True
        self._inbox.wake()

    def call_soon(self, function: Callable[[], None]) -> PendingCall:
        """Have `function` called on the controller's thread, behind what was posted before.  Any thread; never blocks."""
        call = PendingCall(function)
        self._inbox.post(call)
        return call

    def cycle(self) -> None:
        """Handle everything that is waiting, then go on with what may go on.  On the controller's thread."""
        self._inbox.clear_wakes()
        while (taken := self._inbox.take()) is not None:
            if isinstance(taken, PendingCall):
                taken.make()
                continue
            try:
                self._handle(taken)
            except BaseException:
                self._abort(taken)
                raise
        self._go_on()

    def _resume(self) -> None:
        """The thread is starting, perhaps again after a failure."""

    def _timeout_seconds(self) -> float | None:
        """Longest wait for a message; None: without a limit."""
        return None

    @abstractmethod
    def _handle(self, message: Message) -> None: ...

    @abstractmethod
    def _abort(self, message: Message) -> None:
        """Handling it failed: release what it references."""

    @abstractmethod
    def _go_on(self) -> None:
        """Begin what there is capacity for."""


class CompletionQueue(CompletionSource):
    """A list of completions with an eventfd in front of it.

    The descriptor is readable exactly while something is waiting: both change together, under one lock that is held for
    one system call that cannot block.  So no wake-up is lost and none is false.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Completion] = []
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def post(self, completion: Completion) -> None:
        """Add one.  Any thread; never blocks.  After `close` it is kept for `drain`, but wakes no poll."""
        with self._lock:
            self._waiting.append(completion)
            if len(self._waiting) == 1 and self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def fileno(self) -> int:
        """The descriptor to poll, -1 after `close`."""
        return self._fd

    def drain(self) -> Sequence[Completion]:
        """Everything that is waiting, in the order it was posted, each exactly once.  Never blocks; works after `close`."""
        with self._lock:
            taken, self._waiting = self._waiting, []
            if taken and self._fd >= 0:
                os.eventfd_read(self._fd)
            return taken

    def close(self) -> None:
        """Give the descriptor back; take it out of every poll first.  Calling it again does nothing."""
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # A late completion may follow an adapter's close, so the queue outlives it and goes with its last owner.
        if hasattr(self, "_fd") and not ending():
            self.close()


@dataclass(slots=True, eq=False)
class Job:
    """One `submit_*` call.  Changed by its table only.

    An object of it has an outcome when there is one to report, and is settled when its buffer is not touched any more:
    the second may come later."""

    id: JobId
    outcomes: list[Outcome | None]
    undecided: int
    unsettled: int
    lends_buffers: bool
    answered: bool = False


class JobTable:
    """Turns outcomes of single objects, from any thread and in any order, into one `JobDone` per job."""

    def __init__(self, queue: CompletionQueue) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._open: dict[JobId, Job] = {}
        self._ids = itertools.count(1)
        self.in_flight = 0
        """Objects of jobs that were not answered yet."""

    def open(self, size: int, *, lends_buffers: bool) -> Job:
        """A new job of `size` objects.  One of none is answered at once."""
        with self._lock:
            job = Job(JobId(next(self._ids)), [None] * size, size, size, lends_buffers)
            if size:
                self._open[job.id] = job
                self.in_flight += size
            else:
                self._answer(job)
            return job

    def settle(self, job: Job, index: int, outcome: Outcome) -> bool:
        """Object `index` of the job has come to its end, and its buffer is not touched any more.

        False: another outcome was reported before."""
        with self._lock:
            job.unsettled -= 1
            if job.answered:
                if job.lends_buffers and not job.unsettled:
                    self._queue.post(BuffersReleased(job.id))
                return False
            return self._decide(job, index, outcome)

    def report(self, job: Job, index: int, outcome: Outcome) -> None:
        """Report this for object `index`, whose buffer stays borrowed until it is settled."""
        with self._lock:
            if not job.answered:
                self._decide(job, index, outcome)

    def abandon(self) -> int:
        """Answer every open job now: what has no outcome is FAILED, and its buffers stay borrowed until it is settled.

        Returns how many objects are not settled."""
        with self._lock:
            unsettled = 0
            for job in list(self._open.values()):
                unsettled += job.unsettled
                self._answer(job)
            return unsettled

    def _decide(self, job: Job, index: int, outcome: Outcome) -> bool:
        if job.outcomes[index] is not None:
            return False
        job.outcomes[index] = outcome
        job.undecided -= 1
        if not job.undecided:
            self._answer(job)
        return True

    def _answer(self, job: Job) -> None:
        job.answered = True
        if self._open.pop(job.id, None):
            self.in_flight -= len(job.outcomes)
        outcomes = tuple(outcome or Outcome.FAILED for outcome in job.outcomes)
        self._queue.post(JobDone(job.id, outcomes, released=not (job.lends_buffers and job.unsettled)))
