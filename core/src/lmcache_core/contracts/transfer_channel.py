"""How bytes of one server's L1 get into that of another one."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.completion import CompletionSource, JobId
from lmcache_core.contracts.l1_memory import BorrowedBuffer, MemoryRegion

SECRET_BYTES = 16


@dataclass(frozen=True, slots=True)
class ChannelContext:
    """The server, as far as a transfer channel may see it."""

    region: MemoryRegion
    """L1's memory: others read from it, and what is read is written to it.  Valid until `close` has returned."""
    host: str
    """The address at which other machines reach this one.  Nothing is bound on any other."""
    boot_id: str
    """New with every start of the server."""
    clock: Clock
    logger: logging.Logger


class RemoteRead(NamedTuple):
    """`buffer.length` bytes at an offset of the other server's region, into a borrowed buffer of this one's."""

    offset: int
    buffer: BorrowedBuffer


class Route(ABC):
    """To one other server.  Safe from any thread."""

    @abstractmethod
    def submit_read(self, secret: bytes, reads: Sequence[RemoteRead]) -> JobId:
        """Read what a lease of the other server covers; `secret` is that lease's.  Returns at once.  Answered by one
        `JobDone` of the channel, with one outcome for each: DONE only where every byte was written, MISSING where the other
        server does not allow it, FAILED.  What arrived is checked by the caller.  The buffers are borrowed until the job's
        release; after `close`, or without progress for the channel's own limit, a job fails and releases them."""

    @abstractmethod
    def close(self) -> None:
        """Nothing is read any more: jobs under way fail.  Calling it again does nothing."""


class TransferChannel(ABC):
    """One way to read the L1 memory of other servers, which open the same channel.

    Reads are one-sided: the owner's part is to describe its memory, to say which bytes a lease covers, and to be there.
    Safe from any thread.  `expose` and `hide` return at once."""

    keeps_apart: bool = True
    """False: secrets and extents of leases are not checked, and the documentation says so."""

    @abstractmethod
    def describe(self) -> bytes:
        """What another server needs to connect, 4 KiB at most.  It is given to authenticated servers alone."""

    @abstractmethod
    def connect(self, description: bytes) -> Route:
        """A route to the server that has described itself so.  May block for some seconds.  Raises LMCacheError where there
        is none, and for a description that cannot be read."""

    def expose(self, secret: bytes, extents: Sequence[tuple[int, int]]) -> None:  # noqa: B027 - not all can keep apart
        """A lease begins: who brings its secret, of SECRET_BYTES, may read these extents (offset, length) of the region."""

    def hide(self, secret: bytes) -> None:  # noqa: B027 - not all can keep apart
        """The lease has ended: no read of it begins any more.  An unknown secret is ignored."""

    def withdraw(self, description: bytes) -> None:  # noqa: B027 - not all can keep apart
        """The server that was given this description has left, or gets a new one: it is cut off, where each gets another."""

    @abstractmethod
    def completions(self) -> CompletionSource:
        """Of the jobs of all routes.  The same object for the channel's life."""

    @abstractmethod
    def close(self, deadline_seconds: float) -> None:
        """Jobs under way fail, other servers are cut off, and nothing touches the region any more when it has returned.
        Takes about the deadline at most.  Calling it again does nothing."""
