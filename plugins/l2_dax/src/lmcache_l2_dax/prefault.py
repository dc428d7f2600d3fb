"""Allocates pages before they are needed: the first touch of a page costs more than the copy into it."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Sequence
from typing import Final

from lmcache_l2_dax.mapped_device import MappedDevice

AHEAD_BYTES: Final = 64 * 2**20
"""Bytes of each device that are allocated beyond those in use; a sixteenth of the device where that is less."""
STEP_BYTES: Final = 16 * 2**20

_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

logger = logging.getLogger(__name__)


class Prefault:
    """A thread that allocates and maps the pages in front of those in use.  It is an optimisation: where it cannot, the
    thread that copies touches a page first.  Nothing is done before `reach` is first called."""

    def __init__(self, devices: Sequence[MappedDevice], name: str, ahead_bytes: int | None = None) -> None:
        self.done_bytes = 0
        """Of all devices together."""
        self._devices = tuple(devices)
        self._size = min(device.size_bytes for device in devices)
        self._ahead = min(AHEAD_BYTES, self._size // 16) if ahead_bytes is None else ahead_bytes
        self._done = 0  # of each device
        self._wanted = 0
        self._changed = threading.Condition()  # guards the next, and `_wanted`
        self._closed = False
        self._idle = False
        self._thread = threading.Thread(target=self._run, name=f"{name}-prefault", daemon=True)
        self._thread.start()

    def reach(self, used_bytes: int) -> None:
        """The first `used_bytes` of each device are in use, or about to be.  Any thread; never waits for pages."""
        if used_bytes + self._ahead <= self._wanted:
            return
        with self._changed:
            # A step further than asked, so that not every slot wakes the thread.
            self._wanted = max(self._wanted, used_bytes + self._ahead + STEP_BYTES)
            self._idle = False
            self._changed.notify_all()

    def wait_idle(self, seconds: float) -> bool:
        """Until nothing is left to do for now.  False: it took longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self._idle, seconds)

    def close(self) -> None:
        """Waits for the piece that is under way.  The devices may be unmapped then.  Calling it again does nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while self._done < self._size and self._wait():
            length = min(STEP_BYTES, self._size - self._done)
            if not all(self._populate(device, length) for device in self._devices):
                break
            self._done += length
        with self._changed:
            self._rest()

    def _populate(self, device: MappedDevice, length: int) -> bool:
        try:
            _map_pages(device.address + self._done, length)
        except OSError as error:
            logger.warning(
                "l2 device pages are not available ahead of need path=%s error=%s", device.path, error.strerror
            )
            return False
        self.done_bytes += length
        return True

    def _wait(self) -> bool:
        """Until there is something to do.  False: never again."""
        with self._changed:
            if self._done >= self._wanted:
                self._rest()
            self._changed.wait_for(lambda: self._closed or self._done < self._wanted)
            return not self._closed

    def _rest(self) -> None:
        self._idle = True
        self._changed.notify_all()


def _map_pages(address: int, length: int) -> None:
    """Allocate these pages and map them; what they hold stays.  Takes long, other threads run meanwhile.  Raises OSError
    where the medium is full, or this kernel cannot do it (EINVAL)."""
    if _libc.madvise(address, length, _MADV_POPULATE_WRITE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
