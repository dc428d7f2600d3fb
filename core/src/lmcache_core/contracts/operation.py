"""How requests of engines are answered.  Adding a request type is one `Operation` and one method, in one plugin."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Protocol

import msgspec

from lmcache_client.operations import Operation


class HandlerMode(Enum):
    INLINE = "inline"
    """On the router thread: microseconds only, nothing that waits."""
    POOLED = "pooled"
    """On one of a few workers, in any order."""
    AFFINE = "affine"
    """On the one worker that all requests of this connection go to."""
    ORDERED = "ordered"
    """In order with the other ordered and affine requests of its connection.  On the router thread while little of the
    request is to be read (it is small, or its tokens came before) and nothing of its connection is under way, because
    handing it to another thread costs more than most of them take; a handler that would take long there returns
    ELSEWHERE, and is called again on the connection's worker."""


class Stream(Protocol):
    """Many results of one request (docs/internals/engine-protocol.md, "Streams").  Safe from any thread."""

    @property
    def is_open(self) -> bool:
        """False once the client has cancelled it or closed its connection, and after `end`.  Never True again."""

    @property
    def may_send(self) -> bool:
        """The client has asked for another result.  It asks for one at a time."""

    def send(self, result: Any) -> None:
        """Send one result; dropped where the stream is not open.  Raises ValueError where `may_send` is False, and TypeError
        for what cannot be sent."""

    def end(self) -> None:
        """No result follows.  Calling it again does nothing."""


class Call(Protocol):
    """One request, for as long as it is being answered."""

    @property
    def connection(self) -> bytes:
        """Who asks: constant while a client stays connected, never reused for another one."""

    @property
    def may_wait(self) -> bool:
        """False on the router thread, where every microsecond delays all requests."""

    @property
    def is_congested(self) -> bool:
        """True while the connection's answer queue is above its limit for large answers."""

    @property
    def others_wait(self) -> bool:
        """Are there requests waiting for the thread that this one is answered on?  (On the router's thread: has another
        connection asked a moment ago?)  A handler that waits for something it can do without looks at this every few
        milliseconds, and stops when it becomes true."""

    def defer(self, seconds: float, fallback: Any) -> None:
        """Answer later, by `reply`, from any thread; with `fallback` if that has not come within `seconds`.
        The handler then returns DEFERRED.  Raises TypeError for a fallback that cannot be sent, and ValueError for a time
        that is negative or not finite."""

    def reply(self, result: Any) -> bool:
        """Answer a deferred call.  False when it had been answered."""

    def stream(self, wake: Callable[[], None]) -> Stream:
        """Answer with a stream of results, from any thread.  The handler then returns DEFERRED.  `wake` is called on the
        router thread when the client has asked for another result or has cancelled; it returns at once.  Raises
        ProtocolError where too many streams are open."""


class _Sentinel(Enum):
    DEFERRED = "deferred"
    ELSEWHERE = "elsewhere"


DEFERRED: Final = _Sentinel.DEFERRED
"""Returned by a handler that called `Call.defer` or `Call.stream`."""
ELSEWHERE: Final = _Sentinel.ELSEWHERE
"""Returned by an ORDERED handler that has done nothing yet and would take long, where `Call.may_wait` is False."""


class Handler(msgspec.Struct, frozen=True):
    """Who answers an operation: `function(call, *payload)` returns the result."""

    operation: Operation
    function: Callable[..., Any]
    mode: HandlerMode
    may_be_refused: bool = True
    """Answered negatively, and not carried out, while many answers wait for its connection or many requests for its thread.
    False for what registers, frees or reports life: its answer is small, and a lost one has a cost of its own.  Where such an
    answer can be large, the handler looks at `Call.is_congested`."""
