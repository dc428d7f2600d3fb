"""Events as records, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from lmcache_core import ChunksRetrieved, ChunksStored, Event, LookupFinished, RequestEnded
from lmcache_observability.shown_salt import SaltStyle, shown_salt
from lmcache_observability.trace.records import Answer, Ended, EventRecord, Record, Retrieved, Stored

_SALT: Final = "cache_salt"


def event_record(event: Event, salts: SaltStyle) -> EventRecord:
    """The event as it is, but for its salt."""
    fields = {name: getattr(event, name) for name in event.__struct_fields__ if name != "at"}
    if isinstance(salt := fields.get(_SALT), str):
        fields[_SALT] = shown_salt(salt, salts)
    return EventRecord(event.at, type(event).__name__, fields)


def operation(record: EventRecord) -> Record:
    """The record of the storage operation that this event tells of; `record` itself where it tells of none."""
    if record.event not in _KINDS:
        return record
    kind, make = _KINDS[record.event]
    try:
        event = msgspec.convert({**record.fields, "at": record.at}, kind)
    except msgspec.ValidationError:  # a plugin's event of the same name
        return record
    return make(event, "plain")


def answer(event: LookupFinished, salts: SaltStyle) -> Answer:
    hits, l2_hits = event.hit_chunks, event.l2_chunks
    return Answer(event.at, event.request_id, event.requested_chunks, hits, l2_hits, event.seconds)


def stored(event: ChunksStored, salts: SaltStyle) -> Stored:
    return Stored(*_transfer(event, salts))


def retrieved(event: ChunksRetrieved, salts: SaltStyle) -> Retrieved:
    return Retrieved(*_transfer(event, salts))


def ended(event: RequestEnded, salts: SaltStyle) -> Ended:
    return Ended(event.at, event.request_id)


def _transfer(
    event: ChunksStored | ChunksRetrieved, salts: SaltStyle
) -> tuple[float, str, str, str, int, int, int, int, float]:
    salt = shown_salt(event.cache_salt, salts)
    extent = (event.kv_rank, event.first_chunk, event.chunks, event.payload_bytes)
    return (event.at, event.request_id, event.model_name, salt, *extent, event.seconds)


OPERATIONS: Final[Mapping[type[Event], Callable[[Any, SaltStyle], Record]]] = MappingProxyType(
    {LookupFinished: answer, ChunksStored: stored, ChunksRetrieved: retrieved, RequestEnded: ended}
)
"""Lookups themselves are missing: their hashes have a writer that remembers."""
_KINDS: Final = {kind.__name__: (kind, make) for kind, make in OPERATIONS.items()}
