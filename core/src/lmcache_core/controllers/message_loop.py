"""The thread of a controller that lives on messages."""

from __future__ import annotations

import select
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from lmcache_core.jobs.inbox import Inbox

Message = TypeVar("Message")


class Change:
    """What another thread wants a controller to do on its own, between two messages."""

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
        """False when it was not tried in this time; it will be."""
        return self._over.wait(seconds)


class MessageLoop(ABC, Generic[Message]):
    """Handles what is posted, one message at a time, on the thread whose body is `run`.

    A message that cannot be handled is given up, so that what it stood for (holds, pins) is let go, before the failure
    goes on to the supervisor; the messages behind it wait for the thread to be started again."""

    def __init__(self) -> None:
        self._inbox: Inbox[Message | Change] = Inbox()
        self._stop = False

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._inbox, select.POLLIN)
        self._resume()
        while not self._stop:
            self.cycle()
            patience = self._patience_seconds()
            poll.poll(None if patience is None else patience * 1000 + 1)

    def stop(self) -> None:
        """End `run`.  Any thread."""
        self._stop = True
        self._inbox.wake()

    def close(self) -> None:
        """Give the descriptor back.  After `run` has ended for good; what is posted later is never handled."""
        self._inbox.close()

    def change(self, function: Callable[[], None]) -> Change:
        """Have `function` called on the controller's thread, behind what was posted before.  Any thread; never blocks."""
        change = Change(function)
        self._inbox.post(change)
        return change

    def cycle(self) -> None:
        """Handle everything that is waiting, then go on with what may go on.  On the controller's thread."""
        self._inbox.clear_wakes()
        while (taken := self._inbox.take()) is not None:
            if isinstance(taken, Change):
                taken.make()
                continue
            try:
                self._handle(taken)
            except BaseException:
                self._give_up(taken)
                raise
        self._go_on()

    def _resume(self) -> None:
        """The thread is starting, perhaps again after a failure."""

    def _patience_seconds(self) -> float | None:
        """How long to wait for a message before going on without one; None: until one comes."""
        return None

    @abstractmethod
    def _handle(self, message: Message) -> None: ...

    @abstractmethod
    def _give_up(self, message: Message) -> None:
        """Handling it failed: end what it stood for."""

    @abstractmethod
    def _go_on(self) -> None:
        """Begin what there is room for."""
