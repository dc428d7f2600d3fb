"""What the server did for a request, one step for each event that tells of something finished."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from lmcache_core import (
    ChunksRetrieved,
    ChunksStored,
    Event,
    L2LookupCompleted,
    LoadCompleted,
    LoadsDeclined,
    LookupAbandoned,
    LookupFinished,
    PrefetchCompleted,
    StoreCompleted,
    parse_model_name,
)

LOOKUP: Final = "lmcache.lookup"
PREFETCH: Final = "lmcache.prefetch"
L2_LOOKUP: Final = "lmcache.l2.lookup"
L2_DECLINED: Final = "lmcache.l2.declined"
L2_LOAD: Final = "lmcache.l2.load"
L2_STORE: Final = "lmcache.l2.store"
RETRIEVE: Final = "lmcache.retrieve"
STORE: Final = "lmcache.store"
WAITED_FOR: Final[tuple[type[Event], ...]] = (LookupFinished, LookupAbandoned, ChunksRetrieved, ChunksStored)
"""An engine waits while these happen."""
Attributes = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class Step:
    """`begin` and `end` are seconds since the epoch."""

    name: str
    begin: float
    end: float
    attributes: Attributes
    remote: bool = False
    """An L2 backend did it."""
    fault: str = ""
    """What went wrong, for people; empty where nothing did."""


def model_attributes(model_name: str) -> Attributes:
    """The served name, and what an engine says of its KV."""
    served, *identity = parse_model_name(model_name)
    said = " ".join(filter(None, identity))
    return {"lmcache.model": served, "lmcache.model_identity": said} if said else {"lmcache.model": served}


def step_of(event: Event) -> Step:
    """Raises KeyError for a type that is not in `STEP_EVENTS`."""
    return _MAKERS[type(event)](event)


def waited_seconds(events: Iterable[Any]) -> float:
    """How long an engine waited for the server: the time in which a lookup, retrieve or store of the request ran, counted
    once where several ran side by side."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted([(each.at - each.seconds, each.at) for each in events if type(each) in WAITED_FOR]):
        if end > reached:
            total += end - max(begin, reached)
            reached = end
    return total


def _lookup(event: LookupFinished) -> Step:
    requested, hits = event.requested_chunks, event.hit_chunks
    attributes: Attributes = {
        **model_attributes(event.model_name),
        "lmcache.prompt_tokens": event.prompt_tokens,
        "lmcache.requested_chunks": requested,
        "lmcache.hit_chunks": hits,
        "lmcache.l2_chunks": event.l2_chunks,
        "lmcache.outcome": "hit" if requested and hits >= requested else "partial" if hits else "miss",
    }
    return Step(LOOKUP, event.at - event.seconds, event.at, attributes)


def _abandoned(event: LookupAbandoned) -> Step:
    attributes: Attributes = {
        **model_attributes(event.model_name),
        "lmcache.prompt_tokens": event.prompt_tokens,
        "lmcache.requested_chunks": event.requested_chunks,
        "lmcache.outcome": "abandoned",
    }
    return Step(LOOKUP, event.at - event.seconds, event.at, attributes)


def _prefetch(event: PrefetchCompleted) -> Step:
    attributes: Attributes = {
        "lmcache.found_objects": event.found_keys,
        "lmcache.loaded_objects": event.loaded_keys,
        "lmcache.failed_objects": event.failed_keys,
        "lmcache.bytes": event.loaded_bytes,
    }
    fault = _fault(event.failed_keys, event.failed_keys + event.loaded_keys)
    return Step(PREFETCH, event.at - event.seconds, event.at, attributes, fault=fault)


def _l2_lookup(event: L2LookupCompleted) -> Step:
    attributes = _backend("lookup", event.adapter, event.job, event.keys) | {"lmcache.found_objects": event.found}
    return Step(L2_LOOKUP, event.at - event.seconds, event.at, attributes, remote=True)


def _l2_declined(event: LoadsDeclined) -> Step:
    attributes: Attributes = {
        "db.namespace": event.adapter,
        "lmcache.objects": event.objects,
        "lmcache.bytes": event.object_bytes,
    }
    return Step(L2_DECLINED, event.at, event.at, attributes)


def _l2_load(event: LoadCompleted) -> Step:
    objects = event.loaded + event.failed
    attributes = _backend("load", event.adapter, event.job, objects) | {
        "lmcache.failed_objects": event.failed,
        "lmcache.bytes": event.loaded_bytes,
    }
    fault = _fault(event.failed, objects)
    return Step(L2_LOAD, event.at - event.seconds, event.at, attributes, remote=True, fault=fault)


def _l2_store(event: StoreCompleted) -> Step:
    objects = event.stored + event.failed
    attributes = _backend("store", event.adapter, event.job, objects) | {
        "lmcache.failed_objects": event.failed,
        "lmcache.bytes": event.stored_bytes,
        "lmcache.waited_seconds": event.waited_seconds,
    }
    begin = event.at - event.seconds - event.waited_seconds
    return Step(L2_STORE, begin, event.at, attributes, remote=True, fault=_fault(event.failed, objects))


def _transfer(name: str) -> Callable[[ChunksRetrieved | ChunksStored], Step]:
    def step(event: ChunksRetrieved | ChunksStored) -> Step:
        attributes: Attributes = {
            **model_attributes(event.model_name),
            "lmcache.kv_rank": event.kv_rank,
            "lmcache.first_chunk": event.first_chunk,
            "lmcache.chunks": event.chunks,
            "lmcache.bytes": event.payload_bytes,
        }
        return Step(name, event.at - event.seconds, event.at, attributes)

    return step


def _backend(operation: str, adapter: str, job: int, objects: int) -> dict[str, str | int | float | bool]:
    """OpenTelemetry's names of database calls, where they fit."""
    return {
        "db.system.name": "lmcache.l2",
        "db.namespace": adapter,
        "db.operation.name": operation,
        "db.operation.batch.size": objects,
        "lmcache.job": job,
    }


def _fault(failed: int, of: int) -> str:
    return f"{failed} of {of} objects failed" if failed else ""


_MAKERS: Final[Mapping[type[Event], Callable[[Any], Step]]] = MappingProxyType(
    {
        LookupFinished: _lookup,
        LookupAbandoned: _abandoned,
        PrefetchCompleted: _prefetch,
        L2LookupCompleted: _l2_lookup,
        LoadsDeclined: _l2_declined,
        LoadCompleted: _l2_load,
        StoreCompleted: _l2_store,
        ChunksRetrieved: _transfer(RETRIEVE),
        ChunksStored: _transfer(STORE),
    }
)
STEP_EVENTS: Final = tuple(_MAKERS)
