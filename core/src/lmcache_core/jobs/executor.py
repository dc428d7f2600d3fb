"""Where an adapter's work runs.

What happens around an author's method (`object_verbs.py`) is written once, as coroutines.  On threads they run from
start to end without ever being suspended; on an event loop they take turns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Protocol, TypeVar

from lmcache_core.jobs.object_guard import Turn
from lmcache_core.model.results import Outcome

Result = TypeVar("Result")
Method = Callable[..., Result | Awaitable[Result]]
"""What an author wrote, plain or `async`."""

STOP_SECONDS: Final = 0.75
"""So long may it take at least to let go of what was opened, and at most to end what still runs in the background."""


class Task(Protocol):
    """Work on one object.  Exactly one `settle` ends it, whether it was run or not."""

    __slots__ = ()

    def run(self) -> Coroutine[Any, Any, Outcome]:
        """The work; at most once."""

    def settle(self, outcome: Outcome) -> bool:
        """It has ended: no byte of its buffer is touched any more.  False: another outcome was reported before."""

    def give_up(self) -> None:
        """Its time is over, but it has not ended.  Report that; `settle` will follow."""


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
