"""A server that drops all the time says so now and then, and nothing is left out of the sums."""

from __future__ import annotations

import logging

import pytest

from lmcache_core.builtin.drop_log import KINDS_MAX, PERIOD_SECONDS, DropLog
from lmcache_core.builtin.log_subscriber import open_log_subscriber
from lmcache_core.contracts.events import StoresDropped
from lmcache_core.testing.fake_clock import FakeClock


def test_the_first_is_said_at_once_and_the_others_together(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    log = DropLog(logging.getLogger("drops"), clock.monotonic)
    for _ in range(100):
        log.note(StoresDropped("fs", 2, 20, "backlog_bytes"))
    log.note(StoresDropped("", 1, 10, "controller_behind"))
    assert [record.getMessage() for record in caplog.records] == [
        "objects will not reach L2 adapter=fs objects=2 bytes=20 reason=backlog_bytes",
        "objects will not reach L2 adapter=any objects=1 bytes=10 reason=controller_behind",
    ]
    caplog.clear()
    clock.advance(PERIOD_SECONDS)
    log.note(StoresDropped("fs", 1, 10, "backlog_bytes"))
    log.note(StoresDropped("fs", 5, 50, "backlog_bytes"))
    assert [record.args for record in caplog.records] == [("fs", 199, 1990, "backlog_bytes")]
    caplog.clear()
    log.flush()
    log.flush()
    assert [record.args for record in caplog.records] == [("fs", 5, 50, "backlog_bytes")]


def test_a_closed_subscriber_has_said_everything(caplog: pytest.LogCaptureFixture) -> None:
    subscriber = open_log_subscriber(None)
    note = subscriber.subscriptions()[StoresDropped]
    for _ in range(3):
        note(StoresDropped("fs", 1, 10, "adapter_down"))
    subscriber.close()
    assert [record.args for record in caplog.records] == [("fs", 1, 10, "adapter_down"), ("fs", 2, 20, "adapter_down")]


def test_more_kinds_than_are_kept_lose_nothing(caplog: pytest.LogCaptureFixture) -> None:
    log = DropLog(logging.getLogger("drops"), FakeClock().monotonic)
    for turn in range(2):
        for number in range(KINDS_MAX + 1):
            log.note(StoresDropped(f"adapter-{number}", 1 + turn, 10, "adapter_down"))
    log.flush()
    said = [record.args for record in caplog.records]
    assert sum(args[1] for args in said if isinstance(args, tuple) and isinstance(args[1], int)) == 3 * (KINDS_MAX + 1)
