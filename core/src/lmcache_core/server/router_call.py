"""One request, for as long as it is being answered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Protocol

from lmcache_client.codec import Frame, encode_result
from lmcache_core.server.waiting_answers import Envelope

OK: Final = "ok"
ERROR: Final = "error"
"""Its handler failed."""
REFUSED: Final = "refused"
"""Answered negatively without a handler's word, or because the handler found that it breaks the protocol."""


class AnswerDesk(Protocol):
    """What a call needs of the router.  Any thread."""

    def is_first(self, call: RouterCall) -> bool:
        """True for one answer of each call."""

    def post(self, call: RouterCall, result: Sequence[Frame]) -> None:
        """Send these result frames on the router's thread."""

    def is_in_the_way(self, call: RouterCall) -> bool:
        """Are there requests waiting for the thread that this one is answered on?  On the router's thread: has another
        connection asked a moment ago, so that it may wait?"""

    def is_congested(self, call: RouterCall) -> bool:
        """Do too many bytes wait for its connection?"""

    def arm(self, call: RouterCall, seconds: float, fallback: tuple[Frame, ...]) -> None:
        """Answer with these result frames in so many seconds."""


class RouterCall:
    """Implements `contracts.operation.Call`."""

    __slots__ = (
        "_desk",
        "begun",
        "connection",
        "envelope",
        "is_answered",
        "is_deferred",
        "may_wait",
        "operation",
        "outcome",
        "under_way",
    )

    def __init__(self, desk: AnswerDesk, envelope: Envelope, operation: str, begun: float) -> None:
        self._desk = desk
        self.connection = envelope[0]
        self.envelope = envelope
        self.operation = operation
        self.begun = begun
        """When it was received."""
        self.outcome = OK
        """What its answer will count as."""
        self.is_answered = False
        self.is_deferred = False
        self.may_wait = False
        self.under_way = False
        """It is counted as given to its connection's worker."""

    @property
    def is_congested(self) -> bool:
        return self._desk.is_congested(self)

    @property
    def others_wait(self) -> bool:
        return self._desk.is_in_the_way(self)

    def defer(self, seconds: float, fallback: Any) -> None:
        if not 0 <= seconds < math.inf:
            raise ValueError(f"a call cannot be deferred by {seconds} seconds")
        self._desk.arm(self, seconds, encode_result(fallback))
        self.is_deferred = True

    def reply(self, result: Any) -> bool:
        return self.answer(encode_result(result))

    def answer(self, result: tuple[Frame, ...]) -> bool:
        """Send these result frames.  False when the call had been answered."""
        first = self._desk.is_first(self)
        if first:
            self._desk.post(self, result)
        return first
