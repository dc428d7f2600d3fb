"""`GET /requests/slowest` of the admin API."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel, Field

from lmcache_core import HttpAnswer, HttpContext, HttpRefusal, HttpRequest, HttpRoute
from lmcache_observability.tracing.slow_requests import SlowRequestsSubscriber
from lmcache_observability.tracing.slowest import SlowRequest
from lmcache_observability.tracing.steps import Step
from lmcache_observability.tracing.trace_context import trace_id_text

_SUBSCRIBER: Final = "slow_requests"
_LIMIT: Final = 10
_LIMIT_MAX: Final = 1000


class RequestStep(BaseModel):
    """Something that the server did for a request."""

    name: str = Field(description="As spans are called, such as lmcache.lookup.")
    after_seconds: float = Field(description="When it began, since the first step of the request began.")
    seconds: float = Field(description="How long it took.")
    attributes: dict[str, Any] = Field(description="What is known of it, by the names that spans use.")
    fault: str = Field("", description="What went wrong, empty where nothing did.")


class SlowestRequest(BaseModel):
    """A request whose engine waited long."""

    request_id: str = Field(description="As the engine calls it.")
    trace_id: str = Field(description="Under which its spans are found, where it has some.")
    model_name: str = Field(description="Empty where no lookup of it was seen.")
    cache_salt: str = Field(description="The salt or a digest of it, as the settings of `slow_requests` say.")
    ended: float = Field(description="Seconds since the epoch.")
    waited_seconds: float = Field(description="Seconds in which a lookup, retrieve or store of it ran.")
    incomplete: bool = Field(description="True where its end was never heard of.")
    steps: list[RequestStep] = Field(description="In the order in which they began.")


class SlowestRequests(BaseModel):
    """The slowest requests of the window, the slowest first."""

    window_seconds: float = Field(description="How long a request is kept.")
    requests: list[SlowestRequest]


def open_requests_routes(settings: None, context: HttpContext) -> Sequence[HttpRoute]:
    def slowest(request: HttpRequest) -> HttpAnswer:
        limit = _limit(request.query.get("limit"))
        subscriber = context.subscriber(_SUBSCRIBER)
        if not isinstance(subscriber, SlowRequestsSubscriber):
            raise HttpRefusal(
                404, f"the subscriber '{_SUBSCRIBER}' is not active; start the server without --disable-observability"
            )
        kept = subscriber.slowest.list(limit, time.time())
        window = subscriber.settings.window_seconds
        return HttpAnswer(SlowestRequests(window_seconds=window, requests=list(map(_shown, kept))).model_dump())

    return [
        HttpRoute(
            "GET",
            "/requests/slowest",
            slowest,
            "The slowest requests of late, with what the server did for each",
            query={"limit": f"How many at most, 1 to {_LIMIT_MAX}; {_LIMIT} where it is left out."},
            answers=SlowestRequests,
            refusals={400: "The limit is not a number from 1 on.", 404: "Slow requests are not kept."},
        )
    ]


def _limit(text: str | None) -> int:
    if text is None:
        return _LIMIT
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= _LIMIT_MAX):
        raise HttpRefusal(400, f"limit {text[:20]!r}: expected a whole number from 1 to {_LIMIT_MAX}")
    return int(text)


def _shown(request: SlowRequest) -> SlowestRequest:
    steps = sorted(request.steps, key=lambda step: step.begin)
    first = steps[0].begin if steps else request.ended
    return SlowestRequest(
        request_id=request.request_id,
        trace_id=trace_id_text(request.trace_id),
        model_name=request.model_name,
        cache_salt=request.cache_salt,
        ended=request.ended,
        waited_seconds=request.seconds,
        incomplete=request.incomplete,
        steps=[_step(step, first) for step in steps],
    )


def _step(step: Step, first: float) -> RequestStep:
    return RequestStep(
        name=step.name,
        after_seconds=step.begin - first,
        seconds=step.end - step.begin,
        attributes=dict(step.attributes),
        fault=step.fault,
    )
