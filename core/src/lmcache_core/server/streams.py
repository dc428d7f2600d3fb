"""Requests with many results: the client grants each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from lmcache_client.codec import encode_result

if TYPE_CHECKING:
    from lmcache_core.server.calls import RouterCall
    from lmcache_core.server.router import Router

STREAMS_MAX: Final = 1024
CONTROL: Final = b""
"""In place of an operation: what follows is about the stream of this uid."""
GRANT: Final = b"ack"
CANCEL: Final = b"cancel"


class AnswerStream:
    """Implements `contracts.operation.Stream`."""

    __slots__ = ("_router", "_wake", "call", "is_ended", "may_send")

    def __init__(self, router: Router, call: RouterCall, wake: Callable[[], None]) -> None:
        self._router, self.call, self._wake = router, call, wake
        self.may_send = True  # the first one is granted by the request
        self.is_ended = False

    @property
    def is_open(self) -> bool:
        return not self.is_ended and self._router.is_connected(self.call.connection)

    def send(self, result: Any) -> None:
        frames = encode_result(result)
        if not self.may_send:
            raise ValueError("the client has not granted another result")
        self.may_send = False
        if not self.is_ended:
            self._router.post(self.call, frames)

    def end(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            self._router.post_stream(self)

    # --- on the router's thread

    def control(self, word: bytes) -> None:
        """What the client says of it; anything else than a grant ends it."""
        if word == GRANT:
            self.may_send = True
        else:
            self.is_ended = True
        self._wake()
