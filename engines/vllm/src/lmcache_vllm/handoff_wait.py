"""A lookup that is sent when its hand-off is over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from lmcache_client import EngineChannel, EngineKey, LMCacheError
from lmcache_client.handoff import HANDOFF_FOLLOW, HANDOFF_WAIT, OPEN, HandoffState
from lmcache_vllm.server_port import AwaitedHandoff, Question

Ask = Callable[[EngineKey], Question]


class HandoffWaits:
    """Requests that wait for hand-offs, by their ids. Any thread."""

    def __init__(self, channel: EngineChannel, ask: Ask, progress_seconds: float) -> None:
        """`ask` looks up; it raises LMCacheError. A hand-off that makes no progress for that time is not waited for."""
        self._channel, self._ask, self._seconds = channel, ask, progress_seconds
        # Channels complete futures within `submit`, too: a callback may find that its own thread holds this.
        self._lock = threading.RLock()
        self._waiting: dict[str, _Wait] = {}
        self.own_server = ""
        """The name of the server of the channel."""

    def begin(self, key: EngineKey, handoff: AwaitedHandoff) -> Question:
        """Raises LMCacheError."""
        known = -1 if handoff.may_open_later else 0
        if handoff.server not in ("", self.own_server):
            self._channel.submit(HANDOFF_FOLLOW, handoff.id, handoff.server, known, key)
            known = -1  # this server hears of it in a moment
        wait = _Wait(key, handoff.id, known)
        with self._lock:
            self._waiting[key.request_id] = wait
        self._go_on(wait)
        return wait.question

    def forget(self, request_id: str) -> None:
        """Its lookup is not sent any more. What the caller sends next is behind whatever was sent for it."""
        with self._lock:
            self._waiting.pop(request_id, None)

    def _go_on(self, wait: _Wait) -> None:
        seconds = self._seconds + self._channel.timeout_seconds
        future = self._channel.submit(
            HANDOFF_WAIT, wait.handoff_id, wait.chunks, self._seconds, timeout_seconds=seconds
        )
        future.add_done_callback(lambda answer: self._answered(wait, answer))

    def _answered(self, wait: _Wait, answer: Future[HandoffState | None]) -> None:
        state = None if answer.exception() else answer.result()
        try:
            with self._lock:
                key = wait.key
                if self._waiting.get(key.request_id) is not wait:
                    raise LMCacheError("the request does not wait for its hand-off any more")
                if state is not None and state.state == OPEN and state.chunks > wait.chunks:
                    wait.chunks = state.chunks
                    self._go_on(wait)
                    return
                del self._waiting[key.request_id]
                found = self._ask(key)
        except LMCacheError as error:
            wait.fail(error)
            return
        wait.follow(found)


class _Wait:
    def __init__(self, key: EngineKey, handoff_id: str, chunks: int) -> None:
        self.key = key
        self.handoff_id = handoff_id
        self.chunks = chunks
        self._over: Future[None] = Future()
        self.question = Question(Future(), Future(), self._over)

    def fail(self, error: LMCacheError) -> None:
        self._over.set_result(None)
        self.question.accepted.set_exception(error)
        self.question.chunks.set_exception(error)

    def follow(self, found: Question) -> None:
        self._over.set_result(None)
        found.accepted.add_done_callback(lambda source: _copy(source, self.question.accepted))
        found.chunks.add_done_callback(lambda source: _copy(source, self.question.chunks))


def _copy(source: Future[Any], to: Future[Any]) -> None:
    error = source.exception()
    if error is None:
        to.set_result(source.result())
    else:
        to.set_exception(error)
