"""Removes one adapter from a running server, step by step.

    serving -> draining -> removing -> closing -> (lingering) -> removed

While it drains, nothing new is stored there, what waits is stored, and loads go on.  Then nothing is asked of it any more;
what is under way may end until the deadline and is abandoned after it.  An adapter that touches L1's memory beyond its
close lingers: its buffers stay in quarantine, and it is watched until it releases them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from lmcache_core.contracts.clock import Clock
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.adapter_jobs import CompletionThread
from lmcache_core.controllers.prefetch import PrefetchController
from lmcache_core.controllers.store import StoreController
from lmcache_core.jobs.queues import PendingCall

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.02
"""How often it is looked whether a step is over."""
LINGER_SECONDS: Final = 1.0
"""The same for an adapter that keeps what it has borrowed; and how long it may take for that before it is said."""
CLOSE_SECONDS: Final = 5.0
"""What the adapter's own close may take, whatever is left of the deadline; a forced one gets less."""
FORCED_CLOSE_SECONDS: Final = 0.5


class AdapterStage(StrEnum):
    """The stage of an adapter, from when it is added until it is removed."""

    SERVING = "serving"
    DRAINING = "draining"
    """Stores that waited for it are finished; loads go on."""
    REMOVING = "removing"
    """Nothing is asked of it; jobs that are under way may end."""
    CLOSING = "closing"
    LINGERING = "lingering"
    """It was closed and still has memory of L1, which stays in quarantine."""
    REMOVED = "removed"


class AdapterRemoval:
    """`run` is its thread's body; started again, it goes on.  Everything else is for any thread."""

    def __init__(
        self,
        client: AdapterClient,
        store: StoreController,
        prefetch: PrefetchController,
        completions: CompletionThread,
        clock: Clock,
        deadline_seconds: float,
        end_eviction: Callable[[], None],
    ) -> None:
        """`end_eviction` is called before the adapter is closed: what else uses the client has ended when it returns."""
        self.client = client
        self._store = store
        self._prefetch = prefetch
        self._completions = completions
        self._clock = clock
        self._deadline = clock.monotonic() + deadline_seconds
        self._end_eviction = end_eviction
        self._forced = False
        self._stop = threading.Event()
        self._lost_before = store.lost_objects(client)
        self._drain = store.drain_adapter(client)
        self.state = AdapterStage.DRAINING
        self.drained: bool | None = None
        """Did everything that waited get there?  None until that is known."""

    def hurry(self, deadline_seconds: float) -> None:
        """Take no longer than this from now on."""
        self._deadline = min(self._deadline, self._clock.monotonic() + deadline_seconds)

    def force(self) -> None:
        """Wait for nothing any more."""
        self._forced = True

    def stop(self) -> None:
        """The server stops, which closes the adapter, too."""
        self._stop.set()

    @property
    def seconds_left(self) -> float:
        """Until the deadline; 0 when it is over."""
        return 0.0 if self._forced else max(0.0, self._deadline - self._clock.monotonic())

    def run(self) -> None:
        """Returns early, with the step unfinished, when the server stops: what waits or is under way is the server's to
        finish then."""
        if self.state is AdapterStage.DRAINING:
            self._wait_while(lambda: not self._is_drained())
            if self._stop.is_set():
                return
            self.drained = self._is_drained() and self._store.lost_objects(self.client) == self._lost_before
            self.state = AdapterStage.REMOVING
        if self.state is AdapterStage.REMOVING:
            if not (self._made(self._store.remove_adapter) and self._made(self._prefetch.remove_adapter)):
                return
            self._wait_while(lambda: self.client.jobs.unanswered > 0)
            if self._stop.is_set():
                return
            self.client.abandon()
            self.client.shut()
            while self.client.jobs.unanswered and not self._stop.wait(LOOK_SECONDS):
                pass  # the completion thread answers for the adapter, as soon as it runs
            self._end_eviction()
            self.state = AdapterStage.CLOSING
        if self.state is AdapterStage.CLOSING:
            if self._stop.is_set():
                return
            self.client.close(FORCED_CLOSE_SECONDS if self._forced else CLOSE_SECONDS)
            if not self._has_released():
                self._log_that_it_lingers()
                self.state = AdapterStage.LINGERING
        while self.state is AdapterStage.LINGERING and not self._has_released():
            if self._stop.is_set():
                return
        self._completions.remove(self.client)
        self.state = AdapterStage.REMOVED

    # --- inside

    def _is_drained(self) -> bool:
        return self._drain.wait(0) and self._store.pending_for(self.client) == (0, 0)

    def _wait_while(self, goes_on: Callable[[], bool]) -> None:
        while goes_on() and self.seconds_left and not self._stop.wait(LOOK_SECONDS):
            pass

    def _made(self, remove_from: Callable[[AdapterClient], PendingCall]) -> bool:
        """Have a controller release the client, however long its thread is down.  False when the server stops before."""
        change = remove_from(self.client)
        while not change.wait(LOOK_SECONDS) or change.failed:
            if self._stop.is_set():
                return False
            change = remove_from(self.client) if change.failed else change
        return True

    def _has_released(self) -> bool:
        """Of everything that it has borrowed, within a while?"""
        self._completions.look_again()  # a closed descriptor wakes no poll
        for _ in range(int(LINGER_SECONDS / LOOK_SECONDS)):
            if not self.client.borrowed_bytes:
                return True
            if self._stop.wait(LOOK_SECONDS):
                break
        return not self.client.borrowed_bytes

    def _log_that_it_lingers(self) -> None:
        logger.warning(
            "l2 adapter was closed and keeps memory of L1, which stays in quarantine until it releases it "
            "adapter=%s bytes=%d",
            self.client.name,
            self.client.borrowed_bytes,
        )
