"""The subscriber `slow_requests`: what the slowest requests of late spent their time with, also without a collector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from lmcache_core import (
    Event,
    LookupFinished,
    RequestEnded,
    ServerView,
    StoreCompleted,
    Subscriber,
    Subscriptions,
    parse_model_name,
)
from lmcache_observability.shown_salt import shown_salt
from lmcache_observability.tracing.open_requests import STEPS_FREE, OpenRequests, Owner
from lmcache_observability.tracing.settings import SlowRequestsSettings
from lmcache_observability.tracing.slowest import SlowestRequests, SlowRequest
from lmcache_observability.tracing.steps import STEP_EVENTS, WAITED_FOR, step_of, waited_seconds
from lmcache_observability.tracing.trace_context import trace_context

_STEPS_MAX: Final = 256
"""Of a request; what comes beyond them is not kept."""


@dataclass(slots=True)
class _Open:
    """Events as they came: most requests are not slow, and for them nothing is made of these."""

    owner: Owner | None
    steps: list[Event] = field(default_factory=list)
    at_most: float = 0.0
    """No less than what `waited_seconds` of its steps will be."""


class _Over(NamedTuple):
    owner: Owner | None
    number: int
    """Of the slow request that was kept."""


_NOT_KEPT: Final = _Over(None, 0)


class SlowRequestsSubscriber(Subscriber):
    """`slowest` is for any thread, all else for the one that delivers events."""

    def __init__(self, settings: SlowRequestsSettings) -> None:
        self.settings = settings
        self.slowest = SlowestRequests(settings.requests_max, settings.window_seconds)
        self._requests: OpenRequests[_Open, _Over] = OpenRequests(settings.pending_requests_max, self._forgotten)
        self._boot_id = ""

    def subscriptions(self) -> Subscriptions:
        calls: dict[type[Event], Callable[[Any], None]] = dict.fromkeys(STEP_EVENTS, self._stepped)
        calls |= dict.fromkeys(WAITED_FOR, self._waited_for)
        return {**calls, LookupFinished: self._looked_up, RequestEnded: self._ended}

    @property
    def open_requests(self) -> int:
        """Under way."""
        return len(self._requests)

    def begin(self, server: ServerView) -> None:
        self._boot_id = server.info.boot_id

    def _looked_up(self, event: LookupFinished) -> None:
        owner = event.model_name, event.cache_salt
        record = self._requests.of(event.request_id, owner)
        if record is None:
            record = _Open(owner)
            if not self._requests.begin(event.request_id, record):
                return
        record.at_most += event.seconds
        self._keep(record, event)

    def _waited_for(self, event: Any) -> None:
        owner = event.model_name, event.cache_salt
        record = self._requests.of(event.request_id, owner)
        if record is None:
            record = self._opened(event, owner)
        if record is not None:
            record.at_most += event.seconds
            self._keep(record, event)

    def _stepped(self, event: Any) -> None:
        record = self._requests.of(event.request_id, None)
        if record is None:
            record = self._opened(event, None)
        if record is not None:
            self._keep(record, event)

    def _keep(self, record: _Open, event: Any) -> None:
        steps = record.steps
        if len(steps) < _STEPS_MAX:
            steps.append(event.__copy__())  # what is kept of the bus's own events looks like a leak
            if len(steps) > STEPS_FREE:
                self._requests.count_step(record)

    def _opened(self, event: Any, owner: Owner | None) -> _Open | None:
        """What an event of an unknown request begins; None for one that is late."""
        over = self._requests.trail(event.request_id)
        if over is not None:
            if owner is None or owner == over.owner:
                self._late(over.number, event)
            return None
        if isinstance(event, StoreCompleted):  # nothing begins with a store to L2
            return None
        record = _Open(owner)
        return record if self._requests.begin(event.request_id, record) else None

    def _late(self, number: int, event: Event) -> None:
        """Stores can end when their request is long over."""
        kept = self.slowest.find(number)
        if kept is not None and len(kept.steps) < _STEPS_MAX:
            kept.steps = [*kept.steps, step_of(event)]  # not in place: a reader may be at it

    def _ended(self, event: RequestEnded) -> None:
        request_id = event.request_id
        record = self._requests.end(request_id)
        if record is None:
            return
        at = record.steps[-1].at if event.incomplete and record.steps else event.at
        over = _NOT_KEPT
        if self.slowest.is_slow(record.at_most, at) and (
            number := self._kept(request_id, record, at, event.incomplete)
        ):
            over = _Over(record.owner, number)
        self._requests.remember(request_id, over)

    def _forgotten(self, request_id: str, record: _Open) -> None:
        if record.steps:
            self._kept(request_id, record, record.steps[-1].at, incomplete=True)

    def _kept(self, request_id: str, record: _Open, at: float, incomplete: bool = False) -> int:
        """Its number where it is slow enough, otherwise 0."""
        seconds = waited_seconds(record.steps)
        if not self.slowest.is_slow(seconds, at):
            return 0
        lookups = [event for event in record.steps if isinstance(event, LookupFinished)]
        traceparent = next((event.trace_context for event in reversed(lookups)), None)
        context = trace_context(traceparent, self._boot_id, request_id)
        model, salt = record.owner or ("", "")
        model = parse_model_name(model).served
        steps = sorted(map(step_of, record.steps), key=lambda step: step.begin)
        shown = shown_salt(salt, self.settings.salts)
        request = SlowRequest(request_id, context.trace_id, model, shown, at, seconds, steps, incomplete)
        return self.slowest.add(request)


def open_slow_requests(settings: SlowRequestsSettings) -> Subscriber:
    return SlowRequestsSubscriber(settings)
