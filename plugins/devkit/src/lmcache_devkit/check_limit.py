"""A time limit for each check, so that one that hangs is named and the next one runs."""

from __future__ import annotations

import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, TypeVar

CHECK_SECONDS_MAX: Final = 60.0
"""For each of set-up, body and tear-down of a check, unless its suite says otherwise with `check_seconds_max`."""
_AGAIN_SECONDS: Final = 2.0
_SIGNAL: Final = signal.SIGRTMIN + 7  # SIGALRM belongs to pytest-timeout
_OWN_THREAD: Final = "check-limit"


Check = TypeVar("Check", bound=Callable[..., Any])


def check_seconds(seconds: float) -> Callable[[Check], Check]:
    """Of a check that takes long where all is well: it has at least so much time."""

    def mark(check: Check) -> Check:
        check.check_seconds = seconds  # type: ignore[attr-defined]
        return check

    return mark


def seconds_of(suite: type | None, check: Any) -> float | None:
    """The time limit of a check; None for what belongs to no suite."""
    limit: float | None = getattr(suite, "check_seconds_max", None)
    return None if limit is None else max(limit, getattr(check, "check_seconds", 0.0))


class CheckTimedOut(BaseException):
    """A check took longer than its limit.  No Exception: neither a plugin nor Hypothesis may handle it as one of theirs."""


class CheckLimit:
    """Interrupts the main thread where it runs longer than allowed.  Main thread only; does nothing on any other."""

    def __init__(self) -> None:
        self._deadline: float | None = None
        self._what = ""

    @contextmanager
    def limit(self, seconds: float, what: str = "it") -> Iterator[None]:
        """Raise CheckTimedOut within the context after `seconds`, and again every two seconds until it is left: what
        cleans up may hang, too.  Blocking calls of Python are interrupted; native code that never returns is not."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        over = threading.Event()
        main = threading.get_ident()

        def watch() -> None:
            wait = seconds
            while not over.wait(wait):
                signal.pthread_kill(main, _SIGNAL)
                wait = _AGAIN_SECONDS

        before = signal.signal(_SIGNAL, self._interrupt)
        watcher = threading.Thread(target=watch, name=_OWN_THREAD, daemon=True)
        self._what = f"{what} took longer than {seconds:g} s"
        self._deadline = time.monotonic() + seconds
        watcher.start()
        try:
            yield
        finally:
            self._deadline = None  # from here on a late signal does nothing
            over.set()
            watcher.join()  # checks count threads
            signal.signal(_SIGNAL, before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise CheckTimedOut(f"{self._what}{_where_others_are()}")


def _where_others_are() -> str:
    """Where the other threads are, one line each: often the main thread only waits for one of them."""
    frames = sys._current_frames()
    lines = []
    for thread in threading.enumerate():
        if thread is threading.main_thread() or thread.name == _OWN_THREAD or thread.ident not in frames:
            continue
        stack = traceback.extract_stack(frames[thread.ident])
        own = [each for each in stack if not each.filename.endswith("/threading.py")] or stack
        lines.append(f"thread {thread.name} is at {own[-1].filename}:{own[-1].lineno} in {own[-1].name}")
    return "".join(f"\n{line}" for line in lines)
