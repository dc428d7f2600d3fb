"""Executors: where an adapter's work runs, on threads or on an event loop.

What happens around an author's method (`object_verbs.py`) is written once, as coroutines.  On threads they run from
start to end without ever being suspended; on an event loop they take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from lmcache_core import Outcome

Queued = TypeVar("Queued")

URGENT_RUN_MAX: Final = 16
"""Urgent tasks taken in a row while others wait; then one of the others is taken."""


class TaskQueue(Generic[Queued]):
    """Two queues with one outlet.  Its owner's lock guards it."""

    def __init__(self) -> None:
        self._urgent: deque[Queued] = deque()
        self._others: deque[Queued] = deque()
        self._urgent_run = 0

    def __len__(self) -> int:
        return len(self._urgent) + len(self._others)

    def add(self, tasks: Iterable[Queued]) -> None:
        self._others.extend(tasks)

    def add_urgent(self, tasks: Iterable[Queued]) -> None:
        self._urgent.extend(tasks)

    def take(self) -> Queued | None:
        """The next task, or None when there is none."""
        if self._urgent and (self._urgent_run < URGENT_RUN_MAX or not self._others):
            self._urgent_run += 1
            return self._urgent.popleft()
        self._urgent_run = 0
        return self._others.popleft() if self._others else None

    def clear(self) -> list[Queued]:
        """Everything that waits, no longer waiting."""
        waiting = [*self._urgent, *self._others]
        self._urgent.clear()
        self._others.clear()
        return waiting


Result = TypeVar("Result")
Method = Callable[..., Result | Awaitable[Result]]
"""What an author wrote, plain or `async`."""

STOP_SECONDS: Final = 0.75
"""Seconds: the least time for `stopped`, and the most for ending what still runs in the background."""


class Turn(Protocol):
    """An event of threads or of an event loop, set when a change of an object may begin."""

    def set(self) -> object:
        """Set it.  Called without a lock, by the owner of the previous turn."""


class Task(Protocol):
    """Work on one object.  Exactly one `settle` ends it, whether it was run or not."""

    __slots__ = ()

    def run(self) -> Coroutine[Any, Any, Outcome]:
        """The work; at most once."""

    def settle(self, outcome: Outcome) -> bool:
        """It has ended: no byte of its buffer is touched any more.  False: another outcome was reported before."""

    def time_out(self) -> None:
        """Report a time-out of work that has not ended; `settle` will follow."""


class Executor(Protocol):
    """Runs tasks.  `submit*` and `close` are called from any thread and the former never block; the rest is called by
    the coroutines it runs."""

    awaits: bool
    """Are the author's methods `async` here?"""

    def submit(self, tasks: Sequence[Task]) -> bool:
        """False, and nothing is taken, once it is closing."""

    def submit_urgent(self, tasks: Sequence[Task]) -> bool:
        """Before what `submit` was given."""

    def submit_lookups(self, tasks: Sequence[Task]) -> bool:
        """Beside all others, which never keep these waiting."""

    def close(self, deadline_seconds: float) -> Sequence[Task]:
        """Finish what is queued if that takes no longer than the deadline, and stop.  Returns what was never started;
        what is still running then is settled when it ends.  Once only."""

    def wait_stopped(self, timeout_seconds: float) -> None:
        """After `close`: until everything has ended and was given back, or the time is over."""

    def new_turn(self) -> Turn: ...

    async def wait_turn(self, turn: Turn) -> None:
        """Until it is set."""

    async def pause(self, seconds: float) -> bool:
        """False, at once, when the executor is closing."""
