"""What the scheduler side asks of a server."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from lmcache_client import EngineKey


@dataclass(frozen=True, slots=True)
class Server:
    """One run of a server, from a start to the next; each run has an object of its own."""

    boot_id: str
    chunk_tokens: int


class Question(NamedTuple):
    """A lookup under way."""

    accepted: Future[None]
    """Done when the server has taken it, and looks in its backends for what its memory does not have."""
    chunks: Future[int | None]
    """What it found; None if it still looks after a long time."""


class ServerPort(Protocol):
    """Every method returns at once, whatever the server does, and none raises because of it."""

    @property
    def server(self) -> Server | None:
        """The one that answers; None while none does."""

    @property
    def losses(self) -> int:
        """How often it was lost."""

    def look_up(self, key: EngineKey) -> Question | None:
        """Ask for the longest prefix of the key's range, and hold it. The futures get an LMCacheError where no answer
        can be expected any more. None: the server cannot be asked."""

    def free(self, key: EngineKey) -> None:
        """Release the chunks of the key's range that its lookup holds."""

    def end(self, request_id: str) -> None:
        """The request is over, and so are its lookup and what that holds."""

    def clear(self) -> bool:
        """Have nothing found any more; what others hold goes with their last hold. Waits for the answer, for a bounded time:
        False if none came."""

    def close(self) -> None:
        """Disconnect. Nothing else is called afterwards."""
