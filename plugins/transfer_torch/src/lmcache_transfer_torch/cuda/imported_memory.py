"""Allocations of other processes, each mapped once however many tensors lie in it."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from lmcache_transfer_torch.cuda.driver import GpuDriver
from lmcache_transfer_torch.device import DeviceError


@dataclass(slots=True, eq=False)
class Import:
    """One mapped allocation."""

    handle: bytes
    address: int
    length: int
    users: int = 0

    def place(self, offset: int, nbytes: int) -> int:
        """The address of `nbytes` bytes at `offset`.  Raises DeviceError where the allocation does not have them."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.length:
            raise DeviceError(
                f"bytes {offset} to {offset + nbytes} are registered of an allocation that has {self.length}"
            )
        return self.address + offset


class ImportedMemory:
    """Any thread.  Opening and closing of one handle happen one after the other: the driver does not open it twice."""

    def __init__(self, driver: GpuDriver) -> None:
        self._driver = driver
        self._changed = threading.Condition()
        self._imports: dict[bytes, Import] = {}
        self._busy: set[bytes] = set()

    def open(self, handle: bytes) -> Import:
        """Give it back with `close`.  Raises DeviceError."""
        with self._changed:
            self._changed.wait_for(lambda: handle not in self._busy)
            known = self._imports.get(handle)
            if known is not None:
                known.users += 1
                return known
            self._busy.add(handle)
        made = None
        try:
            made = self._map(handle)
            return made
        finally:
            self._free(handle, made)

    def close(self, imported: Import) -> None:
        with self._changed:
            self._changed.wait_for(lambda: imported.handle not in self._busy)
            imported.users -= 1
            if imported.users:
                return
            del self._imports[imported.handle]
            self._busy.add(imported.handle)
        try:
            self._driver.close_memory(imported.address)
        finally:
            self._free(imported.handle, None)

    @property
    def count(self) -> int:
        return len(self._imports)

    def _map(self, handle: bytes) -> Import:
        address = self._driver.open_memory(handle)
        try:
            whole = self._driver.allocation(address)
        except DeviceError:
            self._driver.close_memory(address)
            raise
        return Import(handle, address, whole.address + whole.length - address, users=1)

    def _free(self, handle: bytes, made: Import | None) -> None:
        with self._changed:
            self._busy.discard(handle)
            if made is not None:
                self._imports[handle] = made
            self._changed.notify_all()
