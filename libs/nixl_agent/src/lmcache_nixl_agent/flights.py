"""Transfers on their way.  All of it belongs to the transfer thread."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lmcache_nixl_agent.agent import Extent, Handle, NixlAgent, Registration, Segment


class Transfer(NamedTuple):
    """Bytes between registered memory and a place.  `registers`: the place is registered for this transfer alone.  `peer`: the
    place is memory of the agent of that name."""

    writes: bool
    memory: Extent
    segment: Segment
    place: Extent
    registers: bool = False
    peer: str = ""


class Journey:
    """Groups of transfers: those of a group at the same time, a group when all of the one before have ended well."""

    __slots__ = ("_groups", "_left", "_tell", "error")

    def __init__(self, groups: Sequence[Sequence[Transfer]], tell: Callable[[Exception | None], None]) -> None:
        """`tell` is called once, when nothing touches any of the memory any more, with the first error."""
        self._groups = iter(groups)
        self._tell = tell
        self._left = 0
        self.error: Exception | None = None

    def depart(self) -> Sequence[Flight]:
        """What is to be begun now.  Where that is nothing, it is over, and was completed."""
        group = next((group for group in self._groups if group), ()) if self.error is None else ()
        self._left = len(group)
        if not group:
            self._tell(self.error)
        return [Flight(transfer, self) for transfer in group]

    def arrived(self, error: Exception | None) -> bool:
        """One has ended.  True: all that were begun have."""
        self.error = self.error or error
        self._left -= 1
        return not self._left


class Flight:
    """A transfer from its registration until nothing touches its memory any more."""

    __slots__ = ("_handle", "_registration", "error", "journey", "transfer")

    def __init__(self, transfer: Transfer, journey: Journey) -> None:
        self.transfer = transfer
        self.journey = journey
        self.error: Exception | None = None
        self._handle: Handle | None = None
        self._registration: Registration | None = None

    def begin(self, agent: NixlAgent) -> None:
        writes, memory, segment, place, registers, peer = self.transfer
        try:
            if registers:
                self._registration = agent.register(segment, [place])
            self._handle = agent.prepare(writes=writes, memory=memory, segment=segment, place=place, peer=peer)
            agent.begin(self._handle)
        except Exception as error:  # noqa: BLE001 - NIXL's bindings raise what they like, and it is this transfer's alone
            self.error = error

    def step(self, agent: NixlAgent) -> bool:
        """True: it has ended, and NIXL has released it; the answer stays true."""
        if self._handle is not None:
            if self.error is None and not self._has_ended(agent, self._handle):
                return False
            if not agent.release(self._handle):
                return False
            self._handle = None
        if self._registration is not None:
            registration, self._registration = self._registration, None
            try:
                agent.deregister(registration)
            except Exception as error:  # noqa: BLE001 - as above
                self.error = self.error or error
        return True

    def abandon(self, agent: NixlAgent) -> None:
        """It fails with the next step.  Nothing touches its memory any more once the agent, too, is closed."""
        if self._handle is not None:
            agent.release(self._handle)
            self._handle = None
        self._registration = None
        self.error = self.error or OSError(errno.ECANCELED, "NIXL was ended during the transfer")

    def _has_ended(self, agent: NixlAgent, handle: Handle) -> bool:
        try:
            return agent.has_ended(handle)
        except Exception as error:  # noqa: BLE001 - as above
            self.error = error
            return True
