"""Copies between GPU memory and the file that is L1, without this host's memory in between (GPUDirect Storage)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

from lmcache_core import MemoryRegion
from lmcache_transfer_torch.cuda.host_side import Staging, Waiter
from lmcache_transfer_torch.cuda.pieces import Piece
from lmcache_transfer_torch.device import DeviceError


class DeviceFile(Protocol):
    """A file that is read into and written from GPU memory.  Blocks.  Any thread."""

    def read(self, device: int, offset: int, length: int) -> None: ...

    def write(self, device: int, offset: int, length: int) -> None: ...

    def close(self) -> None: ...


class _Bytes:
    """GPU memory, in the words in which libraries of arrays ask for it."""

    def __init__(self, address: int, length: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (length,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


class KvikioFile:
    """Raises DeviceError where kvikio is not installed or the file cannot be opened."""

    def __init__(self, descriptor: int) -> None:
        try:
            import kvikio  # only where L1 is a file
        except ImportError as error:
            raise DeviceError(f"kvikio cannot be imported ({error}); pip install kvikio-cu12") from None
        try:
            self._file: Any = kvikio.CuFile(os.readlink(f"/proc/self/fd/{descriptor}"), "r+")
        except (OSError, RuntimeError) as error:
            raise DeviceError(f"the file of l1 cannot be opened for the GPU: {error}") from None

    def read(self, device: int, offset: int, length: int) -> None:
        self._whole("read", self._file.read, device, offset, length)

    def write(self, device: int, offset: int, length: int) -> None:
        self._whole("written", self._file.write, device, offset, length)

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def _whole(verb: str, move: Any, device: int, offset: int, length: int) -> None:
        try:
            moved = move(_Bytes(device, length), length, offset)
        except (OSError, RuntimeError) as error:
            raise DeviceError(f"the file of l1 cannot be {verb}: {error}") from None
        if moved != length:
            raise DeviceError(f"{moved} of {length} bytes of the file of l1 were {verb}")


class FileSide:
    """The objects lie in a file.  Blocks."""

    def __init__(
        self, file: DeviceFile, region: MemoryRegion, staging: Sequence[Staging], waiters: Sequence[Waiter]
    ) -> None:
        self._file = file
        self._start = region.address
        self._staging = staging
        self._waiters = waiters

    def before_gather(self, turn: int) -> None:
        """The file has taken what was in the buffer."""

    def to_host(self, turn: int, piece: Piece) -> None:
        stream, staged = self._staging[turn]
        self._waiters[turn].mark(stream)
        self._waiters[turn].wait()
        for run in piece.runs:
            self._file.write(staged + run.staged, run.address - self._start, run.length)

    def to_device(self, turn: int, piece: Piece) -> None:
        staged = self._staging[turn].address
        self._waiters[turn].wait()
        for run in piece.runs:
            self._file.read(staged + run.staged, run.address - self._start, run.length)

    def scattered(self, turn: int) -> None:
        self._waiters[turn].mark(self._staging[turn].stream)

    def finish(self) -> None:
        for waiter in self._waiters:
            waiter.wait()
