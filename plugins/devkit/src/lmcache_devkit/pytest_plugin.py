"""What pytest needs to run the suites well; loaded by its entry point, or with `-p lmcache_devkit.pytest_plugin`.

Importing it loads none of the suite but the time limit of its checks."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lmcache_devkit.check_limit import CheckLimit, seconds_of

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

LEFT_BEHIND = "lmcache_left_behind"
SHOWN_MAX = 5

pytest.register_assert_rewrite(
    "lmcache_devkit.l2",
    "lmcache_devkit.l2_driver",
    "lmcache_devkit.l2_eviction_suite",
    "lmcache_devkit.eviction_suite",
    "lmcache_devkit.store_policy_suite",
    "lmcache_devkit.prefetch_policy_suite",
    "lmcache_devkit.http_routes_suite",
    "lmcache_devkit.request_module_suite",
    "lmcache_devkit.service_suite",
    "lmcache_devkit.l1_memory_suite",
    "lmcache_devkit.subscriber_suite",
    "lmcache_devkit.serde_suite",
    "lmcache_devkit.transfer_channel_suite",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lmcache")
    group.addoption("--lmcache-report", metavar="FILE", help="write what became of each requirement to FILE, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Requirements(config), "lmcache-requirements")
    config.pluginmanager.register(Limits(), "lmcache-limits")


class Limits:
    """Ends a check of a suite that takes longer than its `check_seconds_max`; other tests are left alone."""

    def __init__(self) -> None:
        self._limit = CheckLimit()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._limited(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._limited(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._limited(item))

    def _limited(self, item: pytest.Item) -> Generator[None, object, object]:
        seconds = seconds_of(getattr(item, "cls", None), getattr(item, "function", None))
        if seconds is None:
            return (yield)
        with self._limit.limit(seconds):
            return (yield)


class Requirements:
    """What became of each requirement, in this run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.passed: list[str] = []
        self.skipped: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self.warned: list[str] = []
        self.left_behind: list[str] = []
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        for name, value in report.user_properties:
            if name == LEFT_BEHIND and report.when == "teardown" and isinstance(value, Iterable):
                self.left_behind += value
        if report.failed:
            self.failed.setdefault(report.nodeid, _reason(report))
        elif report.skipped:
            self.skipped[report.nodeid] = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        elif report.when == "call":
            self.passed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = _reason(report)

    def pytest_warning_recorded(self, warning_message: Any) -> None:
        if warning_message.category.__name__ == "UndeclaredCapability":
            self.warned.append(str(warning_message.message))

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        write = terminalreporter.write_line
        if path := self._config.getoption("--lmcache-report"):
            Path(path).write_text(json.dumps(self.to_json(), indent=1))
        if self.left_behind:
            write("Left behind in the backends under test, because the adapter could not or must not delete it:")
            for name in self.left_behind[:SHOWN_MAX]:
                write(f"    {name}")
            if (more := len(self.left_behind) - SHOWN_MAX) > 0:
                write(f"    and {more} more; --lmcache-report names them all")

    def to_json(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "skipped": self.skipped,
            "failed": self.failed,
            "warned": self.warned,
            "left_behind": self.left_behind,
            "seconds": self.seconds,
        }


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The first line that says what was wrong."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
