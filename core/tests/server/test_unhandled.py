"""Requests without a handler are counted by name, and the first one is logged with its remedy."""

from __future__ import annotations

import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_client.operations import KNOWN_REQUESTS
from lmcache_core.server.calls import UnhandledRequests

REMEDIES = {"register_kv_cache": "pip install it"}


def frame(label: int | str) -> bytes:
    return msgspec.msgpack.encode(label)


def test_both_names_of_an_operation_are_one(caplog: pytest.LogCaptureFixture) -> None:
    unhandled = UnhandledRequests(lambda name: REMEDIES.get(name, ""))
    with caplog.at_level(logging.WARNING):
        for label in (1, "register_kv_cache", 1, 25):
            unhandled.note(frame(label))
    assert unhandled.status() == {
        "register_kv_cache": {"count": 3, "remedy": "pip install it"},
        "cb_register_rope": {"count": 1, "remedy": ""},
    }
    (record,) = caplog.records
    assert "operation=register_kv_cache remedy=pip install it" in record.getMessage()


def test_what_is_not_of_the_protocol_is_not_kept() -> None:
    unhandled = UnhandledRequests()
    for label in (999, "no such thing", -1):
        unhandled.note(frame(label))
    unhandled.note(b"\xc1")
    unhandled.note(b"")
    assert unhandled.status() == {}


@given(st.lists(st.binary(max_size=12) | st.integers(0, 40).map(frame), max_size=30))
def test_whatever_comes_fits_a_table_of_the_protocols_size(frames: list[bytes]) -> None:
    unhandled = UnhandledRequests()
    for each in frames:
        unhandled.note(each)
    assert set(unhandled.status()) <= {known.name for known in KNOWN_REQUESTS}
