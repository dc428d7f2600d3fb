"""One way to move objects, as the loop that measures it sees it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from lmcache_client.errors import LMCacheError
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.model.keys import ObjectKey


class BenchFailedError(LMCacheError):
    """What was to be measured did not do what it is for.  The message says who, what, and how to go on."""


class Verb(Enum):
    STORE = "store"
    LOAD = "load"


class Step(NamedTuple):
    """One object to move.  The buffer is borrowed until the step is over."""

    token: int
    verb: Verb
    key: ObjectKey
    buffer: BorrowedBuffer


class Ended(NamedTuple):
    """A step is over: its buffer is not touched any more.  `fault` says what went wrong, None where it is done."""

    token: int
    fault: str | None


class Lane(Protocol):
    """An adapter, or what moves the same bytes without one.  One thread."""

    @property
    def name(self) -> str: ...

    def start(self, steps: Sequence[Step]) -> None:
        """Returns at once."""

    def fileno(self) -> int:
        """A descriptor that polls readable while steps are over and were not fetched."""

    def ended(self) -> Sequence[Ended]:
        """Each step once."""

    def clear(self) -> None:
        """Delete everything that was stored.  Nothing may be on its way."""
