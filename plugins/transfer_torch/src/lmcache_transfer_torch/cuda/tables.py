"""Tables of numbers for kernels: filled on the host, copied to the GPU, used again."""

from __future__ import annotations

import ctypes
import threading
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from lmcache_transfer_torch.cuda.driver import GpuDriver
from lmcache_transfer_torch.device import DeviceError

ITEM_BYTES: Final = 8
_SMALLEST: Final = 16 << 10
_LARGEST: Final = 64 << 20


class Table(NamedTuple):
    host: int
    device: int
    length: int


class Tables:
    """Any thread."""

    def __init__(self, driver: GpuDriver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._free: dict[int, list[Table]] = {}
        self._made = 0

    def take(self, numbers: Sequence[int]) -> Table:
        """One with these numbers on its host's side.  Raises DeviceError."""
        wanted = len(numbers) * ITEM_BYTES
        length = max(_SMALLEST, 1 << (wanted - 1).bit_length()) if wanted else _SMALLEST
        if length > _LARGEST:
            raise DeviceError(f"a transfer of {len(numbers)} blocks is larger than {_LARGEST // ITEM_BYTES}")
        with self._lock:
            free = self._free.setdefault(length, [])
            table = free.pop() if free else None
        if table is None:
            table = self._make(length)
        ctypes.memmove(table.host, array("q", numbers).tobytes(), wanted)
        return table

    def upload(self, table: Table, count: int, stream: int) -> None:
        self._driver.copy_to_device(table.device, table.host, count * ITEM_BYTES, stream)

    def give(self, table: Table) -> None:
        """Nothing reads it any more."""
        with self._lock:
            self._free[table.length].append(table)

    @property
    def in_use(self) -> int:
        with self._lock:
            return self._made - sum(map(len, self._free.values()))

    def close(self) -> None:
        for tables in self._free.values():
            for table in tables:
                self._driver.free_host(table.host)
                self._driver.free(table.device)
        self._free.clear()

    def _make(self, length: int) -> Table:
        host = self._driver.allocate_host(length)
        try:
            device = self._driver.allocate(length)
        except DeviceError:
            self._driver.free_host(host)
            raise
        with self._lock:
            self._made += 1
        return Table(host, device, length)
