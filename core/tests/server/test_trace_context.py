"""Only a valid W3C traceparent becomes a trace context, whatever an engine sends."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmcache_core.server.request_fields import KEYS, trace_context

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("key", KEYS)
def test_a_valid_one_is_taken(key: str) -> None:
    assert trace_context({key: TRACE, "lmcache.other": 1}) == TRACE


def test_a_later_version_may_say_more() -> None:
    assert trace_context({KEYS[0]: "01" + TRACE[2:] + "-what-comes-later"}) == "01" + TRACE[2:]


@pytest.mark.parametrize(
    "value",
    [
        "",
        None,
        7,
        TRACE.upper(),
        TRACE + "-more",
        TRACE + "x",
        TRACE[:-1],
        TRACE.replace("00-", "ff-", 1),
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
        "01" + TRACE[2:] + "x",
        "01" + TRACE[2:] + "-" + "x" * 500,
        TRACE + "\n",
    ],
)
def test_anything_else_is_none(value: Any) -> None:
    assert trace_context({KEYS[0]: value}) is None


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from((*KEYS, "other")), st.one_of(st.text(), st.integers(), st.lists(st.none()))))
def test_nothing_that_an_engine_sends_breaks_it(configs: dict[str, Any]) -> None:
    found = trace_context(configs)
    assert found is None or re.fullmatch(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", found)
