"""Levels of loggers: a change applies at once and is published."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from lmcache_admin.log_levels import LogLevels, UnknownLoggerError
from lmcache_core.contracts.events import SettingChanged
from lmcache_devkit.event_recorder import EventRecorder

NAME = "test.of.log_levels"


@pytest.fixture
def recorder() -> EventRecorder:
    return EventRecorder()


@pytest.fixture
def levels(recorder: EventRecorder) -> Iterator[LogLevels]:
    logging.getLogger(NAME).setLevel(logging.NOTSET)
    before = logging.root.level
    yield LogLevels(recorder)
    logging.getLogger(NAME).setLevel(logging.NOTSET)
    logging.root.setLevel(before)


def test_a_level_is_set_and_taken_back(levels: LogLevels, recorder: EventRecorder) -> None:
    above = logging.getLevelName(logging.getLogger(NAME).getEffectiveLevel())
    row = levels.set(NAME, "DEBUG")
    assert (row.logger, row.own, row.effective) == (NAME, "DEBUG", "DEBUG")
    assert logging.getLogger(NAME).isEnabledFor(logging.DEBUG)
    assert [each.own for each in levels.own() if each.logger == NAME] == ["DEBUG"]
    assert levels.set(NAME, None).own is None
    assert [each for each in levels.own() if each.logger == NAME] == []
    changes = [event for event in recorder.events if isinstance(event, SettingChanged)]
    assert [(event.name, event.before, event.after) for event in changes] == [
        (f"log_level:{NAME}", above, "DEBUG"),
        (f"log_level:{NAME}", "DEBUG", above),
    ]


def test_the_root_always_has_one(levels: LogLevels) -> None:
    assert levels.own()[0].logger == "root"
    assert levels.set("root", "ERROR").effective == "ERROR"
    assert levels.set("root", None).effective == "WARNING"


def test_a_name_under_which_nothing_logs_is_refused_and_not_made(levels: LogLevels) -> None:
    with pytest.raises(
        UnknownLoggerError, match=r"no logger is called 'test.of.log_levles'; did you mean 'test.of.log_levels'"
    ):
        levels.set("test.of.log_levles", "DEBUG")
    with pytest.raises(UnknownLoggerError, match=r"'a\\nb'"):
        levels.set("a\nb", "DEBUG")
    assert "test.of.log_levles" not in logging.root.manager.loggerDict
