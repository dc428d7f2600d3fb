"""One GPU: what its workers share, and whether it can be used."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final, Protocol

from lmcache_transfer_torch.cuda.arena_side import ArenaSide
from lmcache_transfer_torch.cuda.completions import WATCH_SECONDS, Completions
from lmcache_transfer_torch.cuda.driver import GpuDriver
from lmcache_transfer_torch.cuda.imported_memory import ImportedMemory
from lmcache_transfer_torch.cuda.lane import STAGING_BYTES, GpuParts, Lane
from lmcache_transfer_torch.cuda.ordering import EventOrdering, SemaphoreOrdering
from lmcache_transfer_torch.cuda.page_images import Compile
from lmcache_transfer_torch.cuda.page_kernels import PageKernels
from lmcache_transfer_torch.cuda.tables import Tables
from lmcache_transfer_torch.device import DeviceError

logger = logging.getLogger(__name__)

STAGING_MAX: Final = 256 << 20
CLOSE_SECONDS: Final = 30.0


class Leaving(Protocol):
    """Who uses a GPU."""

    def close(self) -> None:
        """Begin no more, and call `Gpu.left` in the end.  Does not wait."""


class Gpu:
    """Any thread."""

    def __init__(
        self,
        driver: GpuDriver,
        compile_kernel: Compile,
        arena: ArenaSide,
        isolated_ipc: bool,
        watch_seconds: float = WATCH_SECONDS,
    ) -> None:
        self.driver = driver
        self.memory = ImportedMemory(driver)
        self._isolated_ipc = isolated_ipc
        ordering = SemaphoreOrdering(driver, self.memory) if isolated_ipc else EventOrdering(driver)
        kernels, tables = PageKernels(driver, compile_kernel), Tables(driver)
        self.parts = GpuParts(driver, kernels, tables, ordering, Completions(driver, watch_seconds), arena)
        self._lock = threading.Lock()
        self._resting: dict[int, list[Lane]] = {}
        self._lanes = 0
        self._users: set[Leaving] = set()
        self._gone = threading.Condition(self._lock)
        self._stopping = False

    def check(self) -> None:
        """Raises DeviceError when it cannot be used any more."""
        if self.parts.completions.failure is not None:
            raise DeviceError(
                f"GPU {self.driver.info.uuid} cannot be used any more: {self.parts.completions.failure}; restart the server"
            )

    def joined(self, user: Leaving) -> None:
        """Before it uses anything of this GPU.  Raises DeviceError when it is being closed."""
        with self._lock:
            if self._stopping:
                raise DeviceError("the server stops")
            self._users.add(user)

    def left(self, user: Leaving) -> None:
        """It uses nothing any more."""
        with self._lock:
            self._users.discard(user)
            self._gone.notify_all()

    def take_lane(self, plane_bytes: int) -> Lane:
        """One that can move planes of `plane_bytes` bytes; give it back with `give_lane`.  Raises DeviceError."""
        size = max(STAGING_BYTES, 1 << (plane_bytes - 1).bit_length())
        if size > STAGING_MAX:
            raise DeviceError(f"one layer of a chunk has {plane_bytes} bytes; at most {STAGING_MAX} can be staged")
        with self._lock:
            resting = self._resting.get(size)
            if resting:
                return resting.pop()
            self._lanes += 1
            number = self._lanes
        return Lane(self.parts, number, size)

    def give_lane(self, lane: Lane) -> None:
        """None of its transfers is under way."""
        with self._lock:
            self._resting.setdefault(lane.staging_bytes, []).append(lane)

    def later(self, function: Callable[[], None]) -> None:
        """Run what may wait for the GPU on a thread of its own."""
        threading.Thread(target=function, name="lmcache-cuda-farewell", daemon=True).start()

    def status(self) -> dict[str, object]:
        info = self.driver.info
        return {
            "uuid": info.uuid,
            "name": info.name,
            "usable": self.parts.completions.failure is None,
            "failure": self.parts.completions.failure,
            "transfers_in_flight": self.parts.completions.count,
            "allocations_imported": self.memory.count,
            "events": "semaphores" if self._isolated_ipc else "shared by the driver",
        }

    def drain(self, seconds: float = CLOSE_SECONDS) -> bool:
        """End all transfers.  False when one still runs: then no memory may be released, and the process should end."""
        with self._lock:
            self._stopping = True
            users = list(self._users)
        for user in users:
            user.close()
        self.parts.completions.give_up()
        # Another thread may be submitting right now: completions end after the last one has left.
        with self._gone:
            gone = self._gone.wait_for(lambda: not self._users, seconds)
        ended = self.parts.completions.close(seconds if gone else 0)
        if not (gone and ended):
            logger.error("transfers on a gpu did not end gpu=%s", self.driver.info.uuid)
            return False
        with suppress(DeviceError):  # a GPU that is broken posts nothing any more
            self.driver.synchronize()  # a transfer is over at its event, and its post to our memory comes behind
        return True

    def close(self) -> None:
        """After `drain`."""
        lanes = [lane for resting in self._resting.values() for lane in resting]
        with ExitStack() as undo:
            undo.callback(self.driver.close)
            for close in (
                self.parts.ordering.close,
                self.parts.kernels.close,
                self.parts.tables.close,
                *(lane.close for lane in lanes),
            ):
                undo.callback(_closed, close)
        self._resting.clear()


def _closed(close: Callable[[], None]) -> None:
    with suppress(DeviceError):  # a GPU that is broken has released everything
        close()
