"""Applies deadlines: of leases, of workers, of sessions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


class Reaper:
    """`run` is its thread's body: it calls every check once per period."""

    def __init__(self, period_seconds: float, checks: Sequence[Callable[[], None]]) -> None:
        self._period = period_seconds
        self._checks = checks
        self._stop = threading.Event()

    def run(self) -> None:
        while not self._stop.wait(self._period):
            faults = []
            for check in self._checks:
                try:
                    check()
                except Exception as error:  # noqa: BLE001 - the other checks come first
                    faults.append(error)
            if faults:
                raise faults[0]

    def stop(self) -> None:
        self._stop.set()
