"""Conditions begin and end with what is reported, are dated, and are logged once each time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from lmcache_core import Condition, ServerState, Severity
from lmcache_core.contracts.conditions import server_state, state_reason
from lmcache_core.controllers import conditions as condition_sources
from lmcache_core.controllers.conditions import (
    Conditions,
    PluginReports,
    RecentGrowth,
    Reporter,
    is_well,
)
from lmcache_devkit.fake_clock import FakeClock

FULL = Condition("medium_full", Severity.WARNING, "no room", "make room", "adapter fs")
DOWN = Condition("thread_down", Severity.CRITICAL, "it is down", subject="thread store")
REFUSED = Condition("requests_refused", Severity.INFO, "3 were refused")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged since this was last asked."""
    said = [f"{record.levelname} {record.getMessage()}" for record in caplog.records]
    caplog.clear()
    return said


def test_a_condition_lasts_as_long_as_it_is_reported(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    reported: list[Condition] = []
    conditions = Conditions(clock)
    conditions.add(lambda: reported)
    assert conditions.active() == ()
    reported.append(FULL)
    (first,) = conditions.active()
    clock.advance(20)
    (second,) = conditions.active()
    assert first == second, "since when does not move"
    (line,) = lines(caplog)
    assert line.startswith(
        "WARNING condition began name=medium_full subject=adapter fs severity=warning reason='no room'"
    )
    reported[0] = FULL._replace(reason="still no room")
    assert conditions.active()[0].condition.reason == "still no room"
    reported.clear()
    assert conditions.active() == ()
    assert lines(caplog) == ["INFO condition ended name=medium_full subject=adapter fs lasted_seconds=20.0"]


def test_one_that_flaps_for_an_hour_is_logged_once_a_minute(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    reported: list[Condition] = []
    conditions = Conditions(clock)
    conditions.add(lambda: reported)
    for second in range(3600):
        reported[:] = [FULL] if second % 4 < 2 else []
        conditions.active()
        clock.advance(1)
    said = lines(caplog)
    began = [line for line in said if "began" in line]
    assert 55 <= len(began) <= 61
    assert "not_logged=14" in began[-1]
    assert len(said) <= 2 * len(began)


def test_one_that_was_left_out_is_logged_when_it_goes_on(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    reported = [FULL]
    conditions = Conditions(clock)
    conditions.add(lambda: reported)
    conditions.active()
    reported.clear()
    conditions.active()
    reported.append(FULL)
    conditions.active()
    assert len(lines(caplog)) == 2, "it began and ended; that it began again is left out for now"
    clock.advance(61)
    conditions.active()
    assert [line.split(" name")[0] for line in lines(caplog)] == ["WARNING condition began"]
    reported.clear()
    conditions.active()
    assert [line.split(" name")[0] for line in lines(caplog)] == ["INFO condition ended"]


def test_the_severest_decides_and_comes_first(clock: FakeClock) -> None:
    reported = [REFUSED]
    conditions = Conditions(clock)
    conditions.add(lambda: reported)
    assert (server_state(conditions.active()), state_reason(conditions.active())) == (ServerState.HEALTHY, "")
    reported.append(FULL)
    assert server_state(conditions.active()) is ServerState.DEGRADED
    reported.append(DOWN)
    active = conditions.active()
    assert [each.condition for each in active] == [DOWN, FULL, REFUSED]
    assert server_state(active) is ServerState.UNHEALTHY
    assert state_reason(active) == "thread store: it is down; adapter fs: no room"
    assert [is_well(subject, active) for subject in ("adapter fs", "adapter f", "adapter fs2")] == [False, True, True]


def test_a_source_that_fails_is_a_condition_and_hides_no_other(clock: FakeClock) -> None:
    def failing() -> Iterator[Condition]:
        yield REFUSED
        raise RuntimeError("boom")

    conditions = Conditions(clock)
    conditions.add(failing)
    conditions.add(lambda: [FULL])
    assert [each.condition.name for each in conditions.active()] == [
        "conditions_unknown", "medium_full", "requests_refused",
    ]  # fmt: skip


def test_growth_is_of_the_last_minute(clock: FakeClock) -> None:
    growth = RecentGrowth(clock)
    assert growth.of("refused", 3) == 3, "what was counted before the first look is new"
    for second in range(1, 120):
        clock.advance(1)
        assert growth.of("refused", 3) == (3 if second <= 60 else 0), second
    assert growth.of("refused", 10) == 7
    assert growth.of("other", 1) == 1


# --- what plugins report


class Author:
    """Reports what a test sets, once `release` is set."""

    def __init__(self, *said: object) -> None:
        self.said: Sequence[object] = said
        self.release = threading.Event()
        self.release.set()

    def conditions(self) -> Sequence[object]:
        self.release.wait(10)
        return self.said


def reports_of(clock: FakeClock, *authors: Author, most: Severity = Severity.WARNING) -> PluginReports:
    named = [Reporter(f"adapter a{at}", author.conditions, most) for at, author in enumerate(authors)]
    return PluginReports(clock, lambda: named)


def test_what_a_plugin_reports_gets_its_subject_and_no_more_severity_than_allowed(clock: FakeClock) -> None:
    reports = reports_of(clock, Author(FULL._replace(subject="")), Author(DOWN._replace(subject="bucket b")))
    assert list(reports.conditions()) == [], "nothing was asked yet"
    reports.refresh()
    assert [(each.name, each.severity, each.subject) for each in reports.conditions()] == [
        ("medium_full", Severity.WARNING, "adapter a0"),
        ("thread_down", Severity.WARNING, "adapter a1, bucket b"),
    ]
    critical = reports_of(clock, Author(DOWN._replace(subject="")), most=Severity.CRITICAL)
    critical.refresh()
    assert [each.severity for each in critical.conditions()] == [Severity.CRITICAL]


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("full", "'full', which is not a Condition"),
        (FULL._replace(name="Medium full"), "'Medium full' is not a name of a condition"),
        (FULL._replace(severity="fatal"), "'fatal' is not a valid Severity"),  # type: ignore[arg-type]
        (FULL._replace(counts={"objects": "many"}), "invalid literal"),  # type: ignore[dict-item]
    ],
)
def test_what_is_not_a_condition_is_named(clock: FakeClock, said: object, says: str) -> None:
    author = Author(said)
    reports = reports_of(clock, author, Author(FULL))
    reports.refresh()
    wrong, right = reports.conditions()
    assert (wrong.name, wrong.severity, wrong.subject) == ("conditions_unknown", Severity.WARNING, "adapter a0")
    assert says in wrong.reason
    assert right.name == "medium_full"
    author.said = ()
    reports.refresh()
    assert [each.name for each in reports.conditions()] == ["medium_full"]


def test_one_that_does_not_come_back_is_named_and_holds_up_no_other(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(condition_sources, "ANSWER_SECONDS", 0.01)
    hanging = Author(FULL._replace(subject=""))
    named = [Reporter("adapter s3", hanging.conditions), Reporter("adapter fs", Author(REFUSED).conditions)]
    reports = PluginReports(clock, lambda: named)
    reports.refresh()
    hanging.release.clear()
    hanging.said = ()
    for _ in range(7):
        reports.refresh()
        clock.advance(1)
    said = list(reports.conditions())
    assert [(each.name, each.subject) for each in said] == [
        ("medium_full", "adapter s3"),
        ("conditions_unknown", "adapter s3"),
        ("requests_refused", "adapter fs"),
    ]
    assert threading.active_count() < 20, "it is not asked again while it does not answer"
    hanging.release.set()
    deadline = time.monotonic() + 5
    while len(list(reports.conditions())) > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [each.name for each in reports.conditions()] == ["requests_refused"]


def test_what_is_not_there_any_more_has_no_conditions(clock: FakeClock) -> None:
    named = [Reporter("adapter fs", Author(FULL).conditions)]
    reports = PluginReports(clock, lambda: named)
    reports.refresh()
    assert list(reports.conditions())
    named.clear()
    reports.refresh()
    assert list(reports.conditions()) == []
