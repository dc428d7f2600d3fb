"""Holds for every test of the repository."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Children of a process that ignores Ctrl-C ignore it too, and pytest-xdist starts its workers so: tests that
    interrupt a program would wait for ever."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
