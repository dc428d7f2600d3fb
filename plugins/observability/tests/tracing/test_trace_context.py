"""Whose trace a request belongs to, and whether it gets spans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_observability.tracing.trace_context import is_sampled, trace_context, trace_id_text
from plugins.observability.tests.tracing.stand_ins import NOT_SAMPLED, TRACEPARENT


def test_the_engines_span_is_the_parent() -> None:
    context = trace_context(TRACEPARENT, "boot", "r")
    assert trace_id_text(context.trace_id) == "0af7651916cd43dd8448eb211c80319c"
    assert (context.parent_id, context.sampled) == (0xB7AD6B7169203331, True)
    assert trace_context(NOT_SAMPLED, "boot", "r").sampled is False


def test_a_later_version_may_have_more_parts() -> None:
    assert trace_context(f"01{TRACEPARENT[2:]}-more", "boot", "r").parent_id == 0xB7AD6B7169203331


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "garbage",
        f"ff{TRACEPARENT[2:]}",
        f"{TRACEPARENT}-more",
        TRACEPARENT.upper(),
        TRACEPARENT.replace("b7ad6b7169203331", "0" * 16),
        TRACEPARENT.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
        f"{TRACEPARENT}\n",
    ],
)
def test_a_wrong_traceparent_is_none(wrong: str) -> None:
    assert trace_context(wrong, "boot", "r") == trace_context(None, "boot", "r")


@given(st.text(), st.text(), st.text())
def test_without_one_the_trace_follows_from_server_and_request(parent: str, boot: str, request_id: str) -> None:
    context = trace_context(parent, boot, request_id)
    assert context == trace_context(None, boot, request_id)
    assert 0 < context.trace_id < 1 << 128
    assert (context.parent_id, context.sampled) == (None, None)
    assert context.trace_id != trace_context(None, boot, f"{request_id}.").trace_id


def test_the_engine_decides_and_the_ratio_otherwise() -> None:
    assert is_sampled(trace_context(TRACEPARENT, "b", "r"), 0.0)
    assert not is_sampled(trace_context(NOT_SAMPLED, "b", "r"), 1.0)
    contexts = [trace_context(None, "b", f"request-{number}") for number in range(2000)]
    assert all(is_sampled(context, 1.0) for context in contexts)
    assert not any(is_sampled(context, 0.0) for context in contexts)
    assert 400 < sum(is_sampled(context, 0.25) for context in contexts) < 600
