"""The subscriber `tracing`: events of a request become spans of one trace."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from lmcache_core import (
    ChunksRetrieved,
    ChunksStored,
    LookupFinished,
    LookupStarted,
    RequestEnded,
    ServerInfo,
    ServerView,
    Subscriber,
    Subscriptions,
)
from lmcache_observability.shown_salt import shown_salt
from lmcache_observability.tracing.open_requests import OpenRequests, Owner, owner_of
from lmcache_observability.tracing.otlp_spans import OtlpSpans
from lmcache_observability.tracing.settings import TracingSettings
from lmcache_observability.tracing.span_record import Root, SpanRecord, late_span, new_root, spans_of
from lmcache_observability.tracing.steps import STEP_EVENTS, Step, model_attributes, step_of
from lmcache_observability.tracing.trace_context import TraceContext, is_sampled, trace_context

logger = logging.getLogger(__name__)

_OPENERS: Final = (LookupFinished, ChunksStored, ChunksRetrieved)
"""Steps that a request can begin with; any other of an unknown request is about one that is long over."""
_STEPS_MAX: Final = 1024
"""Of a request that is not over; what comes beyond them is only counted."""
_READY_MAX: Final = 512
"""Spans that are gathered within a batch."""


class SpanSink(Protocol):
    def send(self, spans: Sequence[SpanRecord]) -> None:
        """Neither blocks nor fails."""

    def close(self) -> None:
        """Send what waits, within a few seconds."""


@dataclass(slots=True)
class _Open:
    """A request under way."""

    owner: Owner | None
    context: TraceContext
    root: Root | None
    """None: it gets no spans."""
    attributes: dict[str, str | int | float | bool] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    left_out: int = 0
    """Steps beyond those."""


class _Over(NamedTuple):
    """A request that is over; see `_Open`."""

    owner: Owner | None
    root: Root | None


_WITHOUT_SPANS: Final = TraceContext(0, None, None)


class SpanBudget:
    """How many requests may get spans, so that a busy server spends a bounded part of its time on them.

    A second's worth may be used at once.  Time is that of the events, so that a late delivery changes nothing."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._most = max(1.0, per_second)
        self._left = self._most
        self._at = float("-inf")

    def has_room(self, at: float) -> bool:
        if at > self._at:
            self._left = min(self._most, self._left + (at - self._at) * self._per_second)
            self._at = at
        return self._left >= 1

    def take(self) -> None:
        """One, where there is room."""
        self._left -= 1


class TracingSubscriber(Subscriber):
    """Nothing is sent before `begin`.  A request's spans are sent together when it is over; what ends later is sent by
    itself, below the same root."""

    def __init__(self, settings: TracingSettings, open_sink: Callable[[TracingSettings, ServerInfo], SpanSink]) -> None:
        self._settings = settings
        self._open_sink = open_sink
        self._sink: SpanSink | None = None
        self._boot_id = ""
        self._budget = SpanBudget(settings.requests_per_second_max)
        self._requests: OpenRequests[_Open, _Over] = OpenRequests(settings.pending_requests_max, self._forgotten)
        self._ready: list[SpanRecord] = []
        self.incomplete = 0
        """Requests whose end was never heard of."""
        self.beyond_budget = 0
        """Requests that came when others had used up the second's share."""

    def subscriptions(self) -> Subscriptions:
        steps = dict.fromkeys(STEP_EVENTS, self._stepped)
        return {LookupStarted: self._started, **steps, RequestEnded: self._ended}

    def begin(self, server: ServerView) -> None:
        self._boot_id = server.info.boot_id
        self._sink = self._open_sink(self._settings, server.info)

    def batch_done(self) -> None:
        if self._ready and self._sink is not None:
            self._sink.send(self._ready)
        self._ready = []

    def close(self) -> None:
        for request_id, record in self._requests.drain():
            self._forgotten(request_id, record)
        self.batch_done()
        if self._sink is not None:
            self._sink.close()
        if self.incomplete or self.beyond_budget:
            logger.info(
                "tracing ended incomplete_requests=%d requests_beyond_budget=%d", self.incomplete, self.beyond_budget
            )

    def _started(self, event: LookupStarted) -> None:
        owner = event.model_name, event.cache_salt
        if event.request_id and self._requests.of(event.request_id, owner) is None:
            self._begin(event.request_id, owner, event.trace_context, event.at)

    def _stepped(self, event: Any) -> None:
        request_id = event.request_id
        if not request_id:
            return
        owner = owner_of(event)
        record = self._requests.of(request_id, owner)
        if record is None:
            over = self._requests.trail(request_id)
            if over is not None and owner in (None, over.owner) and not isinstance(event, LookupFinished):
                if over.root is not None:
                    self._send([late_span(over.root, step_of(event))])
                return
            if not isinstance(event, _OPENERS):
                return
            record = self._begin(request_id, owner, getattr(event, "trace_context", None), event.at)
        if record is None or record.root is None:
            return
        if isinstance(event, LookupFinished):
            record.attributes.update(_about(event, self._settings))
        if len(record.steps) < _STEPS_MAX:
            record.steps.append(step_of(event))
            self._requests.count_step(record)
        else:
            record.left_out += 1

    def _ended(self, event: RequestEnded) -> None:
        record = self._requests.end(event.request_id)
        if record is None:
            return
        self._requests.remember(event.request_id, _Over(record.owner, record.root))
        if event.incomplete:
            self._forgotten(event.request_id, record)
        else:
            self._finish(event.request_id, record, event.at, {})

    def _begin(self, request_id: str, owner: Owner | None, traceparent: str | None, at: float) -> _Open | None:
        record = self._new(request_id, owner, traceparent, at)
        return record if self._requests.begin(request_id, record) else None

    def _new(self, request_id: str, owner: Owner | None, traceparent: str | None, at: float) -> _Open:
        context = trace_context(traceparent, self._boot_id, request_id) if traceparent else None
        if context is None or context.sampled is None:  # not decided yet
            if not self._may_have_spans(at):
                return _Open(owner, _WITHOUT_SPANS, None)
            context = context or trace_context(None, self._boot_id, request_id)
        if not is_sampled(context, self._settings.sample_ratio):
            return _Open(owner, _WITHOUT_SPANS, None)
        if context.sampled is None:
            self._budget.take()
        return _Open(owner, context, new_root(context.trace_id))

    def _may_have_spans(self, at: float) -> bool:
        if not self._settings.sample_ratio:
            return False
        has_room = self._budget.has_room(at)
        self.beyond_budget += not has_room
        return has_room

    def _forgotten(self, request_id: str, record: _Open) -> None:
        if record.root is None:
            return
        self.incomplete += 1
        last = max((step.end for step in record.steps), default=None)
        if last is not None:
            self._finish(request_id, record, last, {"lmcache.incomplete": True})

    def _finish(self, request_id: str, record: _Open, end: float, more: dict[str, str | int | float | bool]) -> None:
        if record.root is None:
            return
        if record.left_out:
            more = {**more, "lmcache.steps_left_out": record.left_out}
        attributes = {"lmcache.request_id": request_id, **record.attributes, **more}
        self._send(spans_of(record.root, record.context.parent_id, attributes, record.steps, end))

    def _send(self, spans: list[SpanRecord]) -> None:
        if self._sink is None:
            return
        self._ready += spans
        if len(self._ready) > _READY_MAX:
            self.batch_done()


def _about(event: LookupFinished, settings: TracingSettings) -> dict[str, str | int | float | bool]:
    """What the request's own span says of it."""
    about: dict[str, str | int | float | bool] = {
        **model_attributes(event.model_name),
        "lmcache.prompt_tokens": event.prompt_tokens,
        "lmcache.requested_chunks": event.requested_chunks,
        "lmcache.hit_chunks": event.hit_chunks,
    }
    if event.cache_salt:
        about["lmcache.cache_salt"] = shown_salt(event.cache_salt, settings.salts)
    return about


def open_tracing(settings: TracingSettings) -> Subscriber:
    return TracingSubscriber(settings, OtlpSpans)
