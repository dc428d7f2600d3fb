"""Events of a request, and a sink that keeps spans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lmcache_core import (
    ChunksRetrieved,
    ChunksStored,
    Event,
    L2LookupCompleted,
    LoadCompleted,
    LookupAbandoned,
    LookupFinished,
    LookupStarted,
    PrefetchCompleted,
    RequestEnded,
    StoreCompleted,
    Subscriber,
)
from lmcache_observability.tracing.span_record import SpanRecord

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NOT_SAMPLED = TRACEPARENT[:-2] + "00"


class SinkStandIn:
    def __init__(self) -> None:
        self.spans: list[SpanRecord] = []
        self.sends = 0
        self.closed = False

    def send(self, spans: Sequence[SpanRecord]) -> None:
        self.sends += 1
        self.spans += spans

    def close(self) -> None:
        self.closed = True

    def named(self, name: str) -> SpanRecord:
        (span,) = [span for span in self.spans if span.step.name == name]
        return span


def feed(subscriber: Subscriber, events: Iterable[Event], done: bool = True) -> None:
    """As the bus does, one batch."""
    calls = subscriber.subscriptions()
    for event in events:
        if call := calls.get(type(event)):
            call(event)
    if done:
        subscriber.batch_done()


def started(request: str = "r", at: float = 100.0, parent: str | None = None, salt: str = "") -> LookupStarted:
    return LookupStarted(
        at=at,
        request_id=request,
        model_name="m",
        cache_salt=salt,
        prompt_tokens=1024,
        requested_chunks=4,
        trace_context=parent,
    )


def looked_up(
    request: str = "r",
    at: float = 101.0,
    seconds: float = 1.0,
    hits: int = 3,
    salt: str = "",
    parent: str | None = None,
) -> LookupFinished:
    return LookupFinished(
        at=at,
        request_id=request,
        model_name="m",
        cache_salt=salt,
        requested_chunks=4,
        hit_chunks=hits,
        l2_chunks=1,
        seconds=seconds,
        prompt_tokens=1024,
        trace_context=parent,
    )


def abandoned(request: str = "r", at: float = 102.0) -> LookupAbandoned:
    return LookupAbandoned(
        at=at, request_id=request, model_name="m", cache_salt="", prompt_tokens=1024, requested_chunks=4, seconds=2.0
    )


def l2_looked_up(request: str = "r", at: float = 100.3) -> L2LookupCompleted:
    return L2LookupCompleted(at=at, adapter="disk", job=7, request_id=request, keys=2, found=1, seconds=0.1)


def loaded(request: str = "r", at: float = 100.8, failed: int = 0) -> LoadCompleted:
    return LoadCompleted(
        at=at, adapter="disk", job=8, request_id=request, loaded=1, failed=failed, loaded_bytes=10, seconds=0.4
    )


def prefetched(request: str = "r", at: float = 100.9) -> PrefetchCompleted:
    return PrefetchCompleted(
        at=at, request_id=request, found_keys=1, loaded_keys=1, failed_keys=0, loaded_bytes=10, seconds=0.8
    )


def retrieved(request: str = "r", at: float = 101.5, seconds: float = 0.25, salt: str = "") -> ChunksRetrieved:
    return ChunksRetrieved(
        at=at,
        model_name="m",
        cache_salt=salt,
        kv_rank=0,
        chunks=3,
        payload_bytes=30,
        request_id=request,
        seconds=seconds,
    )


def stored(request: str = "r", at: float = 103.0, seconds: float = 0.5, salt: str = "") -> ChunksStored:
    return ChunksStored(
        at=at,
        model_name="m",
        cache_salt=salt,
        kv_rank=0,
        chunks=1,
        payload_bytes=10,
        request_id=request,
        first_chunk=3,
        seconds=seconds,
    )


def stored_in_l2(request: str = "r", at: float = 110.0) -> StoreCompleted:
    return StoreCompleted(
        at=at,
        adapter="disk",
        job=9,
        stored=1,
        failed=0,
        seconds=0.5,
        stored_bytes=10,
        waited_seconds=2.0,
        request_id=request,
    )


def ended(request: str = "r", at: float = 104.0, incomplete: bool = False) -> RequestEnded:
    return RequestEnded(at=at, request_id=request, incomplete=incomplete)


def whole_request() -> list[Event]:
    """Every kind of step, from the first to the end."""
    return [started(), l2_looked_up(), loaded(), prefetched(), looked_up(), retrieved(), stored(), ended()]
