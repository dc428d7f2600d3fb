"""Holds for every test of the repository."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.engine_processes import EnginesTogether

KEPT_IN: Final = {
    "test_a_batch_of_a_thousand_is_answered_in_full": ("plugins/l2_fs/tests", "core/tests/builtin"),
    "test_loads_at_once_do_not_share_memory": (
        "plugins/l2_fs/tests",
        "plugins/l2_raw_block/tests",
        "core/tests/builtin",
    ),
    "test_every_event_is_taken_whatever_its_fields_say": ("plugins/devkit/tests/test_subscriber_suite.py",),
    "test_memory_does_not_grow_with_events": ("plugins/devkit/tests/test_subscriber_suite.py",),
    "test_memory_does_not_grow_with_hits": ("core/tests/builtin",),
    "test_memory_does_not_grow_with_requests": ("plugins/devkit/tests/test_request_module_suite.py::TestLookup",),
    "test_memory_does_not_grow_with_stores": ("plugins/l2_fs/tests", "plugins/l2_raw_block/tests"),
    "test_memory_does_not_grow_with_the_objects_that_passed": ("core/tests/builtin",),
    "test_memory_is_bounded_by_the_slots_and_not_by_the_objects_that_passed": ("core/tests/builtin",),
    "test_opening_and_closing_leaves_no_thread_descriptor_or_memory": ("plugins/l2_fs/tests",),
    "test_what_was_done_survives_a_kill_and_nothing_is_torn": ("plugins/l2_fs/tests", "plugins/l2_raw_block/tests"),
}
"""Long tests of the conformance suites, and where `make test` runs them; everywhere else they are slow tests."""


def pytest_configure() -> None:
    """Children of a process that ignores Ctrl-C ignore it too, and pytest-xdist starts its workers so: tests that
    interrupt a program would wait for ever."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["DEMO_SERVERS_ARE_FORKED"] = "1"  # demo.server_process.FORKED
    # How long an example takes says how busy the machine is, not whether the code is right.
    settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any-machine")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> EnginesTogether | None:
    if config.getoption("dist") != "loadfile":
        return None
    from tests.engine_processes import EnginesTogether

    return EnginesTogether(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays: a million objects, through which every garbage collection of a test would look for half a
    second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real engines first, then whole servers: their files take longest, and processes that are done early would wait for the
    last of them."""
    items.sort(key=lambda item: (item.get_closest_marker("engine") is None, not item.nodeid.startswith("tests/")))
    for item in items:
        kept = KEPT_IN.get(getattr(item, "originalname", item.name))
        if kept is not None and not item.nodeid.startswith(kept):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None]:
    """A test that leaves our loggers silent would fail later tests of its process, which read the log."""
    yield
    manager = logging.root.manager
    ours = [
        each
        for name, each in manager.loggerDict.items()
        if name.startswith("lmcache") and isinstance(each, logging.Logger)
    ]
    silent = [each.name for each in ours if each.disabled or each.level or not each.propagate]
    silenced = manager.disable
    logging.disable(logging.NOTSET)
    for each in ours:
        each.disabled, each.propagate = False, True
        each.setLevel(logging.NOTSET)
    assert not silenced, f"logging.disable({silenced}) is left"
    assert not silent, f"loggers are left silent: {silent}"
