"""What an operator must see is a line; what comes a thousand times a second is one now and then."""

from __future__ import annotations

import logging

import pytest

from lmcache_core.builtin.log_subscriber import LogSubscriber, open_log_subscriber
from lmcache_core.builtin.sum_log import PERIOD_SECONDS
from lmcache_core.contracts.events import (
    AdapterAdded,
    AdapterRemoved,
    CacheCleared,
    Event,
    ObjectRejected,
    SettingChanged,
    StoreRefused,
    StoresDropped,
)
from lmcache_devkit.fake_clock import FakeClock

LINES = {
    "INFO adapter added adapter=s3 type=fs": AdapterAdded("s3", "fs"),
    "INFO adapter removed adapter=s3 drained=True": AdapterRemoved("s3", True),
    "WARNING adapter removed adapter=s3 drained=False": AdapterRemoved("s3", False),
    "INFO setting changed name=eviction_ratio before='0.2' after='a\\nb'": SettingChanged(
        "eviction_ratio", "0.2", "a\nb"
    ),
    "INFO L1 was emptied on request chunks=7 force=True": CacheCleared(7, True),
    "WARNING L1 had no room for chunks reason=no_room cache_salt='a\\nb' chunks=3": StoreRefused(
        "model", "a\nb", 3, "no_room"
    ),
    "INFO L1 had no room for chunks reason=quota cache_salt='tenant' chunks=3": StoreRefused(
        "model", "tenant", 3, "quota"
    ),
    "INFO L1 had no room for chunks reason=frozen cache_salt='tenant' chunks=3": StoreRefused(
        "model", "tenant", 3, "frozen"
    ),
    "WARNING objects will not reach L2 adapter=any objects=2 bytes=20 reason=controller_behind": StoresDropped(
        "", 2, 20, "controller_behind"
    ),
}


@pytest.mark.parametrize("line", LINES)
def test_an_event_is_a_line(line: str, caplog: pytest.LogCaptureFixture) -> None:
    event: Event = LINES[line]
    with caplog.at_level(logging.INFO):
        open_log_subscriber(None).subscriptions()[type(event)](event)
    assert [f"{record.levelname} {record.getMessage()}" for record in caplog.records] == [line]


def test_a_closed_subscriber_has_said_everything(caplog: pytest.LogCaptureFixture) -> None:
    subscriber = open_log_subscriber(None)
    subscriptions = subscriber.subscriptions()
    for _ in range(3):
        subscriptions[StoresDropped](StoresDropped("fs", 1, 10, "adapter_down"))
        subscriptions[StoreRefused](StoreRefused("model", "tenant", 4, "no_room"))
    subscriber.batch_done()
    assert [record.args for record in caplog.records] == [("fs", 1, 10, "adapter_down"), ("no_room", "tenant", 4)]
    caplog.clear()
    subscriber.close()
    assert [record.args for record in caplog.records] == [("fs", 2, 20, "adapter_down"), ("no_room", "tenant", 8)]


@pytest.mark.parametrize("before_close", [0.0, PERIOD_SECONDS])
def test_rejects_in_a_row_are_one_line_with_their_number(caplog: pytest.LogCaptureFixture, before_close: float) -> None:
    clock = FakeClock()
    subscriber = LogSubscriber(clock.monotonic)
    reject = subscriber.subscriptions()[ObjectRejected]
    line = "objects rejected, not served adapter=fs outcome=foreign objects=6000 newest=%032x reason=format version 2"
    for storm in range(2):
        caplog.clear()
        for number in range(6_000):
            reject(ObjectRejected("fs", f"{number:032x}", "foreign", "format version 2"))
            clock.advance(8.0 / 6_000)
            subscriber.batch_done()
        assert not caplog.records, storm
        clock.advance(before_close)
        subscriber.batch_done() if before_close else subscriber.close()
        assert [record.getMessage() for record in caplog.records] == [line % 5999]
        clock.advance(3600)
    subscriber.close()
    assert len(caplog.records) == 1
