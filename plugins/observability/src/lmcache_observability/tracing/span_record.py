"""A request's spans, before any telemetry library sees them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lmcache_observability.tracing.steps import L2_DECLINED, L2_LOAD, L2_LOOKUP, LOOKUP, PREFETCH, Attributes, Step

REQUEST: Final = "lmcache.request"
_WITHIN: Final = {
    **dict.fromkeys((L2_LOOKUP, L2_DECLINED, L2_LOAD), (PREFETCH, LOOKUP)),
    PREFETCH: (LOOKUP,),
}
"""Steps that are part of others, the nearest first; all others belong to the request itself."""


@dataclass(frozen=True, slots=True)
class SpanRecord:
    trace_id: int
    span_id: int
    parent_id: int | None
    parent_is_remote: bool
    step: Step


@dataclass(frozen=True, slots=True)
class Root:
    """What spans that come after the request's end need."""

    trace_id: int
    span_id: int


def spans_of(
    root: Root, parent_id: int | None, request: Attributes, steps: Sequence[Step], end: float
) -> list[SpanRecord]:
    """The request's own span, with these attributes, and one for each step below it.  `end` is when the request was over;
    a step that ended later makes it longer."""
    begin = min((step.begin for step in steps), default=end)
    whole = Step(REQUEST, begin, max([end, *(step.end for step in steps)]), request)
    ids = [_new_id() for _ in steps]
    spans = [SpanRecord(root.trace_id, root.span_id, parent_id, parent_id is not None, whole)]
    for step, span_id in zip(steps, ids, strict=True):
        around = _around(step, steps)
        spans.append(SpanRecord(root.trace_id, span_id, root.span_id if around is None else ids[around], False, step))
    return spans


def late_span(root: Root, step: Step) -> SpanRecord:
    """Of a step that ended after its request."""
    return SpanRecord(root.trace_id, _new_id(), root.span_id, False, step)


def new_root(trace_id: int) -> Root:
    return Root(trace_id, _new_id())


def _around(step: Step, steps: Sequence[Step]) -> int | None:
    """Which of the steps this one is part of: the nearest kind that was running in the middle of it."""
    middle = (step.begin + step.end) / 2
    for name in _WITHIN.get(step.name, ()):
        for index, other in enumerate(steps):
            if other.name == name and other.begin <= middle <= other.end:
                return index
    return None


def _new_id() -> int:
    return int.from_bytes(os.urandom(8), "big") or 1
