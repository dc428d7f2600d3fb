"""Holds for every test of the repository."""

from __future__ import annotations

import signal

import pytest


def pytest_configure() -> None:
    """Children of a process that ignores Ctrl-C ignore it too, and pytest-xdist starts its workers so: tests that
    interrupt a program would wait for ever."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real engines first: their files take longest, and processes that are done early would wait for the last of them."""
    items.sort(key=lambda item: item.get_closest_marker("engine") is None)
