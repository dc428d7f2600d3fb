"""Which of the coordinators on one state evicts: the holder of a lease, as long as its own clock says that it holds it."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from typing import Final

from lmcache_fleet.state import CoordinatorState, StateUnavailableError

logger = logging.getLogger(__name__)

LEASE: Final = "leader"
LEASE_SECONDS: Final = 10.0
MARGIN_SECONDS: Final = 2.0
"""By so much earlier than the state it gives up: for clocks that run at different speeds, and what is already being sent."""
RENEW_SECONDS: Final = 2.5


class Leadership:
    """Safe from any thread; `run` is the body of one."""

    def __init__(self, state: CoordinatorState, monotonic: Callable[[], float]) -> None:
        """`monotonic` must go on while the process is stopped."""
        self._state = state
        self._monotonic = monotonic
        self._holder = secrets.token_hex(16)
        self._until = float("-inf")
        self.state_fault = ""
        """Why the state could not be used when it was last asked; empty where it could."""

    @property
    def is_leader(self) -> bool:
        return self._monotonic() < self._until

    def renew(self) -> bool:
        """Take or renew the lease; whether this is the leader now."""
        asked_at = self._monotonic()
        before = self.is_leader
        try:
            if self._state.acquire(LEASE, self._holder, LEASE_SECONDS):
                self._until = asked_at + LEASE_SECONDS - MARGIN_SECONDS
            else:
                self._until = float("-inf")
            self.state_fault = ""
        except StateUnavailableError as error:
            if not self.state_fault:
                logger.warning("state does not answer, and is tried again error=%s", error)
            self.state_fault = str(error)
        if self.is_leader != before:
            logger.info("this coordinator evicts from now on" if self.is_leader else "another coordinator evicts now")
        return self.is_leader

    def run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            self.renew()
            stopping.wait(RENEW_SECONDS)
        if self.is_leader:
            self._until = float("-inf")
            try:
                self._state.release(LEASE, self._holder)
            except StateUnavailableError as error:
                logger.debug("lease was not given back, and ends by itself error=%s", error)
