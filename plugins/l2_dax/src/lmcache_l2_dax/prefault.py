"""Pages are had before they are needed: the first touch of a page costs more than the copy into it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Final

from lmcache_l2_dax.mapped_device import MappedDevice
from lmcache_l2_dax.page_calls import populate

AHEAD_BYTES: Final = 64 * 2**20
"""So much of each device at most lies ready beyond what was used, and a sixteenth of it where that is less."""
STEP_BYTES: Final = 16 * 2**20

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
            # A step further than asked, so that not every slot is news.
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
            populate(device.address + self._done, length)
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
