"""A pytest plugin that writes what became of each requirement as a line of the file that LMCACHE_CHECK_REPORT names.

It is loaded into the process that runs the conformance kit (`app.conformance`), and into no other.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from lmcache_devkit.conformance import REPORT_VARIABLE

_LEFT_BEHIND: Final = "lmcache_left_behind"
"""The property under which the suite's reports name what a requirement could not remove (`testing.l2.fixtures`)."""

_TIMED_OUT: Final = "TimedOut"
"""How the suite's names end of what is raised where something takes too long (`testing.check_limit`, `testing.l2_driver`)."""
TIMED_OUT_MAX: Final = 3
"""After that many checks that hang no further one is run: each would take its whole limit, too."""

_CASE: Final = re.compile(r"\[(.*)\]$")
_SKIPPED: Final = "Skipped: "


class Unopened(NamedTuple):
    """Why no requirement was run: what is under test cannot be opened."""

    fault: str
    """"config", "resource" or "plugin"."""
    text: str
    traceback: str
    """Empty for what the user can fix."""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(RequirementReporter(Path(os.environ[REPORT_VARIABLE])))


def report_unopened(unopened: Unopened) -> None:
    """For the process that began this check; nothing where there is none."""
    if path := os.environ.get(REPORT_VARIABLE):
        _append(Path(path), {"unopened": unopened._asdict()})


def report_opening(limit: float) -> None:
    """Before it is opened: what hangs there is named, too."""
    if path := os.environ.get(REPORT_VARIABLE):
        _append(Path(path), {"started": "it opens", "limit": limit})


def requirement_of(node_id: str) -> str:
    """A test's name as words: `TestFs::test_what_was_stored_is_found[5]` is "what was stored is found (5)"."""
    name = node_id.rpartition("::")[2]
    case = _CASE.search(name)
    words = _CASE.sub("", name).removeprefix("test_").replace("_", " ")
    return f"{words} ({case[1]})" if case else words


class RequirementReporter:
    """One line when a requirement starts, to attribute a crash to it, and one when it is decided.  A
    requirement holds when the set-up, the body and the tear-down of its test passed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._timed_out: set[str] = set()
        self._session: pytest.Session | None = None
        self._decided: dict[str, Any] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            said = [line for line in report.longreprtext.splitlines() if line.strip()]
            errors = [line.removeprefix("E").strip() for line in said if line.startswith("E ")]
            self._write({"failed": (errors or said or ["it cannot be imported"])[-1]})

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        requirement = requirement_of(item.nodeid)
        self._decided = {"requirement": requirement, "outcome": "holds", "reason": "", "whole": "", "left": []}
        self._session = item.session
        self._write({"started": requirement, "limit": _limit_of(item)})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._write({"phase": report.when})
        if report.failed and _seen(report).partition(":")[0].endswith(_TIMED_OUT):
            self._timed_out.add(report.nodeid)
            if len(self._timed_out) == TIMED_OUT_MAX and self._session is not None:
                self._session.shouldstop = f"{TIMED_OUT_MAX} checks timed out"
                self._write({"stopped": f"{TIMED_OUT_MAX} checks took longer than their limit"})
        if report.failed:
            self._decided |= {"outcome": "broken", "reason": _seen(report), "whole": report.longreprtext}
        elif report.skipped and self._decided["outcome"] == "holds":
            where = report.longrepr
            text = str(where[2] if isinstance(where, tuple) else where)
            self._decided |= {"outcome": "not applicable", "reason": text.removeprefix(_SKIPPED)}

        self._decided["left"] += [
            str(each)
            for name, value in report.user_properties
            if name == _LEFT_BEHIND and report.when == "teardown" and isinstance(value, list)
            for each in value
        ]

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._write(self._decided)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._write({"ended": int(exitstatus)})

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        if warning_message.category.__name__ == "UndeclaredCapability":
            self._write({"warned": str(warning_message.message)})

    def _write(self, line: Mapping[str, Any]) -> None:
        _append(self._path, line)


def _limit_of(item: pytest.Item) -> float | None:
    """As the suite reckons it (`testing.check_limit.seconds_of`), which this file, as no part of it, cannot ask."""
    limit: float | None = getattr(getattr(item, "cls", None), "check_seconds_max", None)
    return None if limit is None else max(limit, getattr(getattr(item, "function", None), "check_seconds", 0.0))


def _append(path: Path, line: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _seen(report: pytest.TestReport) -> str:
    """What was expected and what was seen, as pytest says it, without the code around it."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message) if crash is not None else report.longreprtext
