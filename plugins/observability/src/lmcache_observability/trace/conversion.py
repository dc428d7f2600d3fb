"""A recording in the words of other tools, one JSON object per line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from types import MappingProxyType
from typing import Any, Final

from lmcache_observability.trace.reader import Entry
from lmcache_observability.trace.records import Began, EventRecord, Lookup, Record

Lines = Iterator[str]
_DEPTH_MAX: Final = 32


def to_simulate(entries: Iterable[Entry]) -> Lines:
    """Requests as `lmcache simulate` reads them, and as Mooncake publishes them: `timestamp` counts milliseconds since the
    first lookup, and `hash_ids` number the chunks of all models."""
    numbers: dict[tuple[str, int, bytes], int] = {}
    started: float | None = None
    for record, hashes in entries:
        if not isinstance(record, Lookup) or not hashes:
            continue
        started = record.at if started is None else started
        names = [(record.model, record.world_size, each) for each in hashes]
        line: dict[str, Any] = {
            "timestamp": max(0, round((record.at - started) * 1000)),
            "input_length": record.prompt_tokens,
            "output_length": 0,
            "hash_ids": [numbers.setdefault(name, len(numbers)) for name in names],
        }
        if record.salt:
            line["salt"] = record.salt
        yield json.dumps(line)


def to_lookup_hash(entries: Iterable[Entry]) -> Lines:
    """Lines as the subscriber `lookup_hash` writes them."""
    chunk_tokens = 0
    for record, hashes in entries:
        if isinstance(record, Began):
            chunk_tokens = record.chunk_tokens
        if isinstance(record, Lookup):
            line = {
                "timestamp": record.at,
                "request_id": record.request,
                "model_name": record.model,
                "cache_salt": record.salt,
                "world_size": record.world_size,
                "chunk_size": chunk_tokens,
                "seq_len": record.prompt_tokens,
                "chunk_hashes": [f"0x{each.hex()}" for each in hashes],
            }
            yield json.dumps(line)


def to_jsonl(entries: Iterable[Entry]) -> Lines:
    """Every record: its kind under `record`, and its fields; bytes as hexadecimal digits."""
    for record, hashes in entries:
        yield json.dumps(_fields(record, hashes))


def _fields(record: Record, hashes: list[bytes]) -> dict[str, Any]:
    if isinstance(record, EventRecord):
        return {"record": record.event, "at": record.at, **_plain(record.fields)}
    fields = {name: _plain(getattr(record, name)) for name in record.__struct_fields__ if name not in ("known", "more")}
    chunks = {"chunk_hashes": [each.hex() for each in hashes]} if isinstance(record, Lookup) else {}
    return {"record": type(record).__name__, **fields, **chunks}


def _plain(value: Any, depth: int = 0) -> Any:
    """As JSON has it; what is nested deeper than any event becomes text."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.hex()
    if depth == _DEPTH_MAX:
        return "..."
    if isinstance(value, dict):
        return {str(key): _plain(each, depth + 1) for key, each in value.items()}
    return [_plain(each, depth + 1) for each in value] if isinstance(value, list) else str(value)


FORMS: Final = MappingProxyType[str, Callable[[Iterable[Entry]], Lines]](
    {"simulate": to_simulate, "jsonl": to_jsonl, "lookup-hash": to_lookup_hash}
)
