"""The metadata of a mapped device, read and written by copies that survive a page which vanishes."""

from __future__ import annotations

import os
import select
from typing import Final

from lmcache_l2_dax.mapped_device import MappedDevice
from lmcache_native.io import COPY, IoEngine
from lmcache_object_slots.pages import Pages

CLOSE_SECONDS: Final = 5.0


class CopiedRegion:
    """A `MetaRegion` at the beginning of a device.  Blocking; one thread at a time; raises OSError."""

    def __init__(self, device: MappedDevice) -> None:
        self._device = device
        self._engine = IoEngine("threads", 1, 1, device.size_bytes)
        self._answer = select.poll()
        self._answer.register(self._engine.fileno(), select.POLLIN)

    def read(self, offset: int, length: int) -> bytes:
        if not length:
            return b""
        with Pages(length) as pages:
            self._copy(self._device.address + offset, pages.address, length)
            return pages[:length]

    def write(self, offset: int, data: bytes) -> None:
        if not data:
            return
        with Pages(len(data)) as pages:
            pages[:] = data
            self._copy(pages.address, self._device.address + offset, len(data))

    def sync(self) -> None:
        self._device.flush()

    def close(self) -> None:
        """Give the engine back; the device stays its owner's."""
        self._engine.close(CLOSE_SECONDS)

    def _copy(self, source: int, target: int, length: int) -> None:
        self._engine.submit([(COPY, 0, source, target, length, 0, -1)])
        self._answer.poll()
        ((_, result, _),) = self._engine.answers()
        if result < 0:
            raise OSError(-result, os.strerror(-result), str(self._device.path))
