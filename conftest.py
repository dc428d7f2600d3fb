"""Holds for every test of the repository."""

from __future__ import annotations

import signal
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

LONG_LAWS: Final = {
    "test_memory_does_not_grow_with_events": "plugins/devkit/tests/test_subscriber_suite.py",
    "test_memory_does_not_grow_with_requests": "plugins/devkit/tests",
    "test_memory_does_not_grow_with_the_objects_that_passed": "core/tests/builtin",
    "test_memory_is_bounded_by_the_slots_and_not_by_the_objects_that_passed": "core/tests/builtin",
    "test_opening_and_closing_leaves_no_thread_descriptor_or_memory": "plugins/l2_fs/tests",
}
"""Laws of the conformance suites that take 5 to 20 s, and where they are always held; everywhere else they are slow tests."""


def pytest_configure() -> None:
    """Children of a process that ignores Ctrl-C ignore it too, and pytest-xdist starts its workers so: tests that
    interrupt a program would wait for ever."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # How long an example takes says how busy the machine is, not whether the code is right.
    settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any-machine")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real engines first, then whole servers: their files take longest, and processes that are done early would wait for the
    last of them."""
    items.sort(key=lambda item: (item.get_closest_marker("engine") is None, not item.nodeid.startswith("tests/")))
    for item in items:
        always = LONG_LAWS.get(item.name)
        if always is not None and not item.nodeid.startswith(always):
            item.add_marker(pytest.mark.slow)
