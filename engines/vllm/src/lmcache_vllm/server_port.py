"""What the scheduler side asks of a server."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from lmcache_client import EngineKey, Operation
from lmcache_client.blend import BlendAnswer


@dataclass(frozen=True, slots=True)
class Server:
    """One run of a server, from a start to the next; each run has an object of its own."""

    boot_id: str
    chunk_tokens: int
    instance_id: str = ""
    """Its name among servers."""


class Question(NamedTuple):
    """A lookup under way."""

    accepted: Future[Any]
    """Done when the server has shown that it takes requests: it looks in its backends for what its memory does not have."""
    chunks: Future[int | None] | Future[BlendAnswer]
    """What it found: chunks of the prefix, None if it still looks after a long time. Of `look_up_blend`, the answer."""
    handoff_over: Future[None] | None = None
    """Done when the hand-off was waited for, and the server is asked; None where there is nothing to wait for."""


class AwaitedHandoff(Protocol):
    """What a lookup waits for."""

    @property
    def id(self) -> str: ...

    @property
    def may_open_later(self) -> bool:
        """It is waited for although the server does not know it yet."""

    @property
    def server(self) -> str:
        """The name of the server that has it; empty: this engine's own."""


class ServerPort(Protocol):
    """Every method returns at once, whatever the server does, and none raises because of it."""

    @property
    def server(self) -> Server | None:
        """The one that answers; None while none does."""

    @property
    def losses(self) -> int:
        """How often it was lost."""

    @property
    def blends(self) -> bool:
        """Whether a server is there that can be asked for more than a prefix."""

    def look_up(self, key: EngineKey, handoff: AwaitedHandoff | None = None) -> Question | None:
        """Ask for the longest prefix of the key's range, and hold it, as soon as the hand-off is over. The futures get an
        LMCacheError where no answer can be expected any more. None: the server cannot be asked."""

    def look_up_blend(self, key: EngineKey) -> Question | None:
        """As `look_up`, for the prefix and the segments behind it. `free` releases the prefix alone, `end` all."""

    def free(self, key: EngineKey) -> None:
        """Release the chunks of the key's range that its lookup holds."""

    def end(self, request_id: str) -> None:
        """The request is over, and so are its lookup and what that holds."""

    def hand_over(self, step: Operation, handoff_id: str, *facts: Any) -> None:
        """Say how far a hand-off is: an operation of `lmcache_client.handoff`, and its other arguments."""

    def clear(self) -> bool:
        """Have nothing found any more; what others hold goes with their last hold. Waits for the answer, for a bounded time:
        False if none came."""

    def close(self) -> None:
        """Disconnect. Nothing else is called afterwards."""
