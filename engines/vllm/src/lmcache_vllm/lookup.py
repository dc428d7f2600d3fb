"""One lookup, from the question to the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lmcache_client import EngineKey, LMCacheError
from lmcache_vllm.server_port import Question, Server

FRESH_SECONDS: Final = 1.0
"""Seconds until a lookup that did not find everything is asked again: others have stored since."""
HELD_SECONDS: Final = 60.0
"""One that found everything is asked again as well: what it found is not held for ever."""


class Lookup:
    """A question that was sent. Its answer comes on another thread, and is taken on vLLM's."""

    __slots__ = ("_answered_at", "_asked_at", "_hit_tokens", "_question", "end", "key", "sent_at", "server")

    def __init__(
        self, key: EngineKey, end: int, server: Server, question: Question, clock: Callable[[], float]
    ) -> None:
        """`end`: of the tokens that are asked for. The key's is that of their last chunk."""
        self.key = key
        self.end = end
        self.server = server
        self.sent_at = clock()
        self._question = question
        self._answered_at = self.sent_at
        self._asked_at: float | None = self.sent_at
        if question.handoff_over is not None:
            self._asked_at = None
            question.handoff_over.add_done_callback(lambda _: self._stamp_asked(clock))
        self._hit_tokens: int | None = None
        question.chunks.add_done_callback(lambda _: self._stamp(clock))

    def _stamp(self, clock: Callable[[], float]) -> None:
        self._answered_at = clock()

    def _stamp_asked(self, clock: Callable[[], float]) -> None:
        self._asked_at = clock()

    def waited(self, now: float, since: float) -> float:
        """Seconds that the server was waited for, at most from `since` on: none while a hand-off is."""
        return 0.0 if self._asked_at is None else now - max(self._asked_at, since)

    @property
    def hit_tokens(self) -> int | None:
        """None until the answer was taken."""
        return self._hit_tokens

    @property
    def is_accepted(self) -> bool:
        """Whether the server has said that it has the question."""
        accepted = self._question.accepted
        return accepted.done() and accepted.exception() is None

    @property
    def seconds(self) -> float:
        """From the question to the answer."""
        return self._answered_at - self.sent_at

    def take(self, patience: float) -> int | None:
        """The tokens that were found; None if there is no answer `patience` seconds from now. Raises LMCacheError where
        none can be expected any more, and for one that makes no sense."""
        try:
            chunks = self._question.chunks.result(max(0.0, patience))
        except TimeoutError:
            return None
        if chunks is None:
            raise LMCacheError("the server did not finish it")
        asked = self.key.end // self.server.chunk_tokens
        if not 0 <= chunks <= asked:
            raise LMCacheError(f"the server found {chunks} chunks of {asked}")
        self._hit_tokens = min(chunks * self.server.chunk_tokens, self.end)
        return self._hit_tokens

    def is_stale(self, now: float) -> bool:
        """Whether the answer that was taken is too old to be relied on."""
        if self._hit_tokens is None:
            return False
        return now - self._answered_at > (HELD_SECONDS if self._hit_tokens == self.end else FRESH_SECONDS)
