"""How a piece gets between a staging buffer and the objects on the host's side."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from lmcache_transfer_torch.cuda.driver import GpuDriver
from lmcache_transfer_torch.cuda.pieces import Piece
from lmcache_transfer_torch.cuda.posix_semaphore import PosixSemaphore
from lmcache_transfer_torch.device import DeviceError

BOUNCE_SECONDS: Final = 30.0
"""How long a transfer that needs this process in between waits for the GPU before it fails."""
LOOK_SECONDS: Final = 1.0
"""How often a broken GPU, which posts nothing, is looked for meanwhile."""


class Staging(NamedTuple):
    """A buffer on the GPU and the stream in which it is filled and emptied."""

    stream: int
    address: int


class HostSide(Protocol):
    """For one job.  `turn` says which of the two staging buffers a piece uses.  What raises has left work in the streams."""

    def before_gather(self, turn: int) -> None:
        """The staging buffer is about to be filled from pages."""

    def to_host(self, turn: int, piece: Piece) -> None:
        """The staging buffer is filled: empty it into the objects."""

    def to_device(self, turn: int, piece: Piece) -> None:
        """Fill the staging buffer from the objects."""

    def scattered(self, turn: int) -> None:
        """The staging buffer is being emptied into pages."""

    def finish(self) -> None:
        """The last piece was submitted."""


class PinnedSide:
    """The copy engine reaches the objects."""

    def __init__(self, driver: GpuDriver, staging: Sequence[Staging]) -> None:
        self._driver = driver
        self._staging = staging

    def before_gather(self, turn: int) -> None:
        """The stream keeps the order."""

    def to_host(self, turn: int, piece: Piece) -> None:
        stream, staged = self._staging[turn]
        for run in piece.runs:
            self._driver.copy_to_host(run.address, staged + run.staged, run.length, stream)

    def to_device(self, turn: int, piece: Piece) -> None:
        stream, staged = self._staging[turn]
        for run in piece.runs:
            self._driver.copy_to_device(staged + run.staged, run.address, run.length, stream)

    def scattered(self, turn: int) -> None:
        """The stream keeps the order."""

    def finish(self) -> None:
        """The streams finish it."""


class Waiter:
    """Waits for a stream, on the caller's thread and not for ever."""

    def __init__(self, driver: GpuDriver, seconds: float = BOUNCE_SECONDS) -> None:
        self._driver = driver
        self._seconds = seconds
        self._semaphore = PosixSemaphore()
        self._owed = 0
        self._stream = 0

    def mark(self, stream: int) -> None:
        """`wait` waits until the stream is here."""
        self._driver.post(stream, self._semaphore.address)
        self._owed += 1
        self._stream = stream

    def wait(self) -> None:
        """Raises DeviceError when the GPU does not get there, and soon where it is broken."""
        end = time.monotonic() + self._seconds
        while self._owed:
            if self._semaphore.wait(min(LOOK_SECONDS, self._seconds)):
                self._owed -= 1
                continue
            self._driver.check(self._stream)
            if time.monotonic() >= end:
                raise DeviceError(f"the GPU did not get to a transfer in {self._seconds:g} s")


class BounceSide:
    """The objects lie in memory that is not pinned: each piece takes a step through a pinned buffer.  Blocks."""

    def __init__(
        self, driver: GpuDriver, staging: Sequence[Staging], buffers: Sequence[int], waiters: Sequence[Waiter]
    ) -> None:
        self._driver = driver
        self._staging = staging
        self._buffers = buffers
        self._waiters = waiters
        self._unread: list[Piece | None] = [None, None]

    def before_gather(self, turn: int) -> None:
        self._settle(turn)

    def to_host(self, turn: int, piece: Piece) -> None:
        stream, staged = self._staging[turn]
        self._driver.copy_to_host(self._buffers[turn], staged, piece.nbytes, stream)
        self._waiters[turn].mark(stream)
        self._unread[turn] = piece

    def to_device(self, turn: int, piece: Piece) -> None:
        stream, staged = self._staging[turn]
        self._settle(turn)
        for run in piece.runs:
            ctypes.memmove(self._buffers[turn] + run.staged, run.address, run.length)
        self._driver.copy_to_device(staged, self._buffers[turn], piece.nbytes, stream)

    def scattered(self, turn: int) -> None:
        self._waiters[turn].mark(self._staging[turn].stream)

    def finish(self) -> None:
        for turn in range(2):
            self._settle(turn)

    def _settle(self, turn: int) -> None:
        """The buffer is free again; what it holds has reached the objects."""
        self._waiters[turn].wait()
        piece, self._unread[turn] = self._unread[turn], None
        if piece is not None:
            for run in piece.runs:
                ctypes.memmove(run.address, self._buffers[turn] + run.staged, run.length)
