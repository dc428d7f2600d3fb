"""A connection that many threads share.

A thread that waits for an answer receives the answers of all: the first waiting thread leads, reads the socket itself and so
gets its own answer without a thread switch; it notifies others that wait meanwhile.  While requests are under way that
no thread waits for, or the leader leaves others behind, a thread of the channel leads.  So a call costs what it costs over a
connection of one's own, and a future is completed although no thread waits for it.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from math import ceil
from types import TracebackType
from typing import Any, Final, Self

from lmcache_client import operations as ops
from lmcache_client.engine_key import EngineKey
from lmcache_client.errors import NoAnswerError
from lmcache_client.exchange import Exchange, Outcome, not_sent
from lmcache_client.operations import Operation
from lmcache_client.verbs import Verbs

_LONGEST_POLL_MS: Final = 3_600_000


class EngineChannel(Verbs):
    """One connection to a server, for any number of threads.  Connects in the background, and again after a loss.

    Every method may be called from any thread at any time, `close` included; requests of one thread go out in its order.
    Futures are completed on whatever thread reads the answer, so their callbacks must not take long; they may use the
    channel, and close it.  Each request ends by its answer, its own time-out or `close`: a future cannot be cancelled.
    Fork first and open a channel then: in a child process calls raise LMCacheError.
    """

    def __init__(self, endpoint: str, timeout_seconds: float = 10.0) -> None:
        """`timeout_seconds` is the default of all requests.  Raises LMCacheError when the endpoint cannot be parsed."""
        self.endpoint = endpoint
        self.timeout_seconds = timeout_seconds
        self._exchange: Exchange[Future[Any]] = Exchange(endpoint)
        # Guards the exchange, the leadership and the two descriptors; never held while anything waits.
        self._lock = threading.Lock()
        self._left = threading.Condition(self._lock)
        self._leader: int | None = None
        self._depth = 0  # the leader's: calls that its callbacks make
        self._closed = False
        self._to_leader = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._to_thread = os.eventfd(0, os.EFD_CLOEXEC)
        self._poller = select.poll()
        self._poller.register(self._exchange.descriptor, select.POLLIN)
        self._poller.register(self._to_leader, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name="lmcache-channel", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End every request with NoAnswerError, and the connection.  Returns when that is done, or at once from a callback,
        which the end waits for.  May be called again."""
        with self._lock:
            first, self._closed = not self._closed, True
            outcomes = self._exchange.abandon() if first else []
            if first:
                os.eventfd_write(self._to_leader, 1)
                os.eventfd_write(self._to_thread, 1)
            in_callback = threading.get_ident() in (self._leader, self._thread.ident)
        _complete(outcomes)
        if not in_callback:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def call(self, operation: Operation, *payload: Any, timeout_seconds: float | None = None) -> Any:
        """Send a request and wait for its answer."""
        future, leads = self._send(operation, payload, timeout_seconds, waits=True)
        if leads:
            self._lead(future)
        return future.result()

    def submit(self, operation: Operation, *payload: Any, timeout_seconds: float | None = None) -> Future[Any]:
        """Send a request; the future gets its answer, or the error that `call` would raise.  Raises NoAnswerError when the
        channel is closed or takes no more requests, and ProtocolError for a wrong number of arguments."""
        return self._send(operation, payload, timeout_seconds, waits=False)[0]

    def tell(self, operation: Operation, *payload: Any) -> None:
        """Send a request whose answer is not needed: no thread wakes up for it.  Raises as `submit` does."""
        request = self._exchange.encode(operation, payload)
        with self._lock:
            if self._closed:
                raise not_sent(operation, self.endpoint)
            try:
                self._exchange.tell(request)
            except NoAnswerError:
                if self._leader is not None:
                    os.eventfd_write(self._to_leader, 1)
                raise
            # What `tell` sent before was answered by now, and must not pile up; and a leader's descriptor may not tell of what
            # has arrived any more.
            outcomes = self._exchange.arrived()
        _complete(outcomes)
        if outcomes:
            with self._lock:
                if self._leader is not None and not self._closed:
                    os.eventfd_write(self._to_leader, 1)

    def submit_lookup(self, key: EngineKey, tp_size: int = 1, *, wait_seconds: float) -> Future[int | None]:
        """Look up and have the answer pushed: both requests go out at once.  The future gets the hit chunks as soon as the
        server knows them, or None when it does not after `wait_seconds`; ask `query_prefetch_status` then."""
        self.submit(ops.LOOKUP, key, tp_size)
        seconds = wait_seconds + self.timeout_seconds
        return self.submit(ops.WAIT_PREFETCH_STATUS, key.request_id, float(wait_seconds), timeout_seconds=seconds)

    def _send(
        self, operation: Operation, payload: Sequence[Any], timeout_seconds: float | None, waits: bool
    ) -> tuple[Future[Any], bool]:
        """The future, and whether the calling thread is to lead, which it can only where it `waits`."""
        request = self._exchange.encode(operation, payload)
        seconds = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._closed:
                raise not_sent(operation, self.endpoint)
            try:
                uid = self._exchange.send(request, seconds, future)
            except NoAnswerError:
                if self._leader is not None:  # its descriptor may not tell of what has arrived any more
                    os.eventfd_write(self._to_leader, 1)
                raise
            here = threading.get_ident()
            if waits and self._leader in (None, here):  # here: a callback makes a call
                self._leader = here
                return future, True
            if self._leader is None:
                os.eventfd_write(self._to_thread, 1)
                return future, False
            outcomes = self._exchange.arrived()  # the leader's descriptor may not tell of them any more
            sooner = self._exchange.ends_first(uid)
        _complete(outcomes)
        if outcomes or sooner:
            with self._lock:
                if not self._closed:
                    os.eventfd_write(self._to_leader, 1)
        return future, False

    def _lead(self, own: Future[Any] | None) -> None:
        """Read the socket until that future is done; without one, until nothing is outstanding."""
        self._depth += 1
        try:
            self._take_answers(own)
        finally:
            self._depth -= 1
            if not self._depth:
                self._step_down()

    def _take_answers(self, own: Future[Any] | None) -> None:
        while True:
            with self._lock:
                outcomes = self._exchange.arrived()
                ended, seconds = self._exchange.expired()
                over = self._closed or (own is None and not self._exchange.outstanding)
            _complete([*outcomes, *ended])
            if over or (own is not None and own.done()):
                return
            wait = _LONGEST_POLL_MS if seconds is None else ceil(min(seconds * 1000, _LONGEST_POLL_MS))
            for descriptor, _ in self._poller.poll(wait):
                if descriptor == self._to_leader:
                    os.eventfd_read(self._to_leader)

    def _step_down(self) -> None:
        with self._lock:
            self._leader = None
            if self._closed:
                self._left.notify_all()
            elif self._exchange.outstanding:
                os.eventfd_write(self._to_thread, 1)

    def _run(self) -> None:
        while True:
            os.eventfd_read(self._to_thread)
            with self._lock:
                if self._closed:
                    break
                if self._leader is not None:
                    continue
                self._leader = threading.get_ident()
            self._lead(None)
        with self._lock:
            self._left.wait_for(lambda: self._leader is None)
            self._exchange.close()
            os.close(self._to_leader)
            os.close(self._to_thread)


def _complete(outcomes: Sequence[Outcome[Future[Any]]]) -> None:
    for at, (future, value, error) in enumerate(outcomes, 1):
        try:
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)
        except BaseException:  # Ctrl-C in a callback: these answers are not received again
            _complete(outcomes[at:])
            raise
