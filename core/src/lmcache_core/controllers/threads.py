"""Threads of controllers: their supervision, message loops, and the thread that waits for all adapters."""

from __future__ import annotations

import logging
import select
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.conditions import Condition, Severity
from lmcache_core.contracts.events import AdapterHealthChanged, Publisher
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.jobs.queues import Inbox
from lmcache_core.model.errors import error_message

logger = logging.getLogger(__name__)


BACKOFF_FIRST_SECONDS = 0.05
BACKOFF_MAX_SECONDS = 5.0
BACKOFF_FORGOTTEN_SECONDS = 60.0
"""A thread that ran longer than this is started again at once, whatever its earlier failures."""


@dataclass(slots=True)
class _Supervised:
    thread: threading.Thread | None = None
    down: bool = False
    ended: bool = False
    """Its function has returned."""
    dismissed: bool = False
    restarts: int = 0
    last_error: str = ""


class Supervisor:
    """Each supervised thread runs a function until it returns.  One that raises is logged with its stack, counted,
    and started again after a pause that doubles; the server is unhealthy meanwhile.  Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held to replace the table, not to look at it
        self._entries: Mapping[str, _Supervised] = {}
        self._stopping = threading.Event()

    def start(self, name: str, run: Callable[[], None]) -> None:
        """Start a supervised thread.  One of the same name must have been dismissed before."""
        entry = _Supervised()
        entry.thread = threading.Thread(target=self._keep_running, args=(name, entry, run), name=name, daemon=True)
        with self._lock:
            self._entries = {**self._entries, name: entry}
        entry.thread.start()

    def dismiss(self, name: str, timeout_seconds: float) -> bool:
        """Forget a thread that was asked to stop; it is not started again.  False when it has not ended after this
        time: its thread is left behind."""
        with self._lock:
            entry = self._entries.get(name)
            self._entries = {other: kept for other, kept in self._entries.items() if other != name}
        if entry is None or entry.thread is None:
            return True
        entry.dismissed = True
        if entry.thread is not threading.current_thread():
            entry.thread.join(timeout_seconds)
        return not entry.thread.is_alive()

    def stopping(self) -> None:
        """From now on a thread that fails is not started again."""
        self._stopping.set()

    def join(self, timeout_seconds: float) -> list[str]:
        """Wait for all charges together.  Returns the names of those that did not end in time."""
        self._stopping.set()
        threads = {name: entry.thread for name, entry in self._entries.items() if entry.thread is not None}
        deadline = time.monotonic() + timeout_seconds
        for thread in threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        return [name for name, thread in threads.items() if thread.is_alive()]

    def conditions(self) -> Iterator[Condition]:
        """Which threads are down, and why."""
        for name, entry in self._entries.items():
            if entry.down:
                yield Condition(
                    "thread_down",
                    Severity.CRITICAL,
                    f"it is down: {entry.last_error}",
                    "it is started again by itself; the log has its stack, report it",
                    f"thread {name}",
                )

    def restarts(self) -> dict[str, int]:
        """Failures of each thread since the start."""
        return {name: entry.restarts for name, entry in self._entries.items()}

    def is_down(self, name: str) -> bool:
        """It failed and does not run again yet."""
        entry = self._entries.get(name)
        return entry is not None and entry.down

    @property
    def down(self) -> int:
        """Threads that failed and do not run again yet."""
        return sum(entry.down for entry in self._entries.values())

    def status(self) -> dict[str, object]:
        return {
            name: {
                "running": not (entry.down or entry.ended),
                "restarts": entry.restarts,
                "last_error": entry.last_error,
            }
            for name, entry in self._entries.items()
        }

    def _keep_running(self, name: str, entry: _Supervised, run: Callable[[], None]) -> None:
        pause = BACKOFF_FIRST_SECONDS
        while True:
            begun = time.monotonic()
            try:
                run()
            except BaseException as error:  # SystemExit too: a plugin's code may raise it
                entry.down = True
                entry.restarts += 1
                if time.monotonic() - begun > BACKOFF_FORGOTTEN_SECONDS:
                    pause = BACKOFF_FIRST_SECONDS
                entry.last_error = f"{type(error).__name__}: {error_message(error)}"
                logger.exception("thread failed name=%s restarts=%d retry_seconds=%.2f", name, entry.restarts, pause)
            else:
                entry.ended = True
                return
            if self._stopping.wait(pause) or entry.dismissed:
                return
            pause = min(pause * 2, BACKOFF_MAX_SECONDS)
            entry.down = False


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

    def close(self) -> None:
        """Give the descriptor back.  After `run` has ended for good; what is posted later is never handled."""
        self._inbox.close()

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
        """Begin what there is room for."""


class CompletionThread:
    """Waits for every adapter at once; `run` is its body, for the supervisor.  Everything else is for any thread."""

    def __init__(self, clients: Sequence[AdapterClient], clock: Clock, events: Publisher | None = None) -> None:
        self._lock = threading.Lock()  # held to change the clients, not to look at them
        self._clients = tuple(clients)
        self._clock = clock
        self._events = events
        self._wakes: Inbox[None] = Inbox()
        self._stop = False
        for client in clients:
            client.call_when_armed(self._wakes.wake)

    def add(self, client: AdapterClient) -> None:
        """Before the client is given its first job."""
        client.call_when_armed(self._wakes.wake)
        self._change(lambda clients: (*clients, client))

    def remove(self, client: AdapterClient) -> None:
        """Stop polling it."""
        self._change(lambda clients: tuple(other for other in clients if other is not client))

    def look_again(self) -> None:
        """Poll the descriptors anew: an adapter was closed, and the number of its descriptor may be in use again."""
        self._change(lambda clients: (*clients,))

    def run(self) -> None:
        while not self._stop:
            self._serve(self._clients)

    def _serve(self, clients: tuple[AdapterClient, ...]) -> None:
        """As long as these are the clients."""
        poll = select.poll()
        poll.register(self._wakes, select.POLLIN)
        by_descriptor: dict[int, AdapterClient] = {}
        for client in clients:
            if (descriptor := client.descriptor()) is not None:
                poll.register(descriptor, select.POLLIN)
                by_descriptor[descriptor] = client
        for client in clients:
            client.deliver()  # what was left when this thread failed, or the client was looked at last
        while not self._stop and clients is self._clients:
            now = self._clock.monotonic()
            deadlines = [deadline for client in clients if (deadline := client.expire(now)) is not None]
            self._publish_health(clients)
            timeout_ms = max(0.0, min(deadlines) - now) * 1000 + 1 if deadlines else None
            for descriptor, events in poll.poll(timeout_ms):
                if (ready := by_descriptor.get(descriptor)) is None:
                    self._wakes.drain()
                elif events & select.POLLNVAL:
                    poll.unregister(descriptor)
                    ready.cut_off()
                else:
                    ready.deliver()

    def _publish_health(self, clients: Sequence[AdapterClient]) -> None:
        for client in clients:
            healthy = client.health_change()
            if healthy is not None and self._events is not None:
                self._events.publish(AdapterHealthChanged(client.name, healthy))

    def _change(self, function: Callable[[tuple[AdapterClient, ...]], tuple[AdapterClient, ...]]) -> None:
        with self._lock:
            self._clients = function(self._clients)
        self._wakes.wake()

    def stop(self) -> None:
        self._stop = True
        self._wakes.wake()
