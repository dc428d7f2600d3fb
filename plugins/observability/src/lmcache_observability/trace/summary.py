"""What is in a recording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from lmcache_observability.trace.reader import Entry
from lmcache_observability.trace.records import Answer, Began, Closed, EventRecord, Lookup, Lost, Retrieved, Stored

BlockName = tuple[str, str, int, bytes]
"""Model, salt, world size and chunk hash: what makes two chunks the same."""


@dataclass(slots=True)
class TraceSummary:
    path: str
    level: str = ""
    server_version: str = ""
    chunk_tokens: int = 0
    first: float | None = None
    last: float | None = None
    """Seconds since the epoch."""
    records: Counter[str] = field(default_factory=Counter)
    """By what they tell of."""
    models: Counter[str] = field(default_factory=Counter)
    """Lookups, by model."""
    salts: Counter[str] = field(default_factory=Counter)
    """Lookups, by salt."""
    prompt_tokens: int = 0
    requested_chunks: int = 0
    distinct_chunks: int = 0
    ceiling_chunks: int = 0
    """Hits of a cache that forgets nothing and is empty at the start of the recording."""
    answered_chunks: int = 0
    hit_chunks: int = 0
    """Of the answered ones, what the server had."""
    l2_hit_chunks: int = 0
    stored_chunks: int = 0
    stored_bytes: int = 0
    retrieved_chunks: int = 0
    retrieved_bytes: int = 0
    lost_records: int = 0
    torn_bytes: int = 0
    closed: bool = False
    """False: the server is still recording, or did not stop in order."""

    @property
    def seconds(self) -> float:
        return 0.0 if self.first is None or self.last is None else self.last - self.first

    @property
    def hit_rate(self) -> float | None:
        """None where no lookup was answered."""
        return self.hit_chunks / self.answered_chunks if self.answered_chunks else None

    @property
    def ceiling(self) -> float | None:
        return self.ceiling_chunks / self.requested_chunks if self.requested_chunks else None


def summarise(path: str, entries: Iterable[Entry]) -> TraceSummary:
    """`torn_bytes` is the caller's to fill in."""
    summary, seen = TraceSummary(path), set[BlockName]()
    for record, hashes in entries:
        if not isinstance(record, Began | Closed | Lost):
            summary.first = record.at if summary.first is None else min(summary.first, record.at)
            summary.last = record.at if summary.last is None else max(summary.last, record.at)
            summary.records[record.event if isinstance(record, EventRecord) else type(record).__name__] += 1
        match record:
            case Began():
                summary.level, summary.server_version = record.level, record.server_version
                summary.chunk_tokens = record.chunk_tokens
            case Lookup():
                summary.models[record.model] += 1
                summary.salts[record.salt] += 1
                summary.prompt_tokens += record.prompt_tokens
                _count_lookup(summary, record, hashes, seen)
            case Answer():
                summary.answered_chunks += record.requested
                summary.hit_chunks += record.hits
                summary.l2_hit_chunks += record.l2_hits
            case Stored():
                summary.stored_chunks += record.chunks
                summary.stored_bytes += record.payload_bytes
            case Retrieved():
                summary.retrieved_chunks += record.chunks
                summary.retrieved_bytes += record.payload_bytes
            case Lost():
                summary.lost_records += record.records
            case Closed():
                summary.closed = True
    return summary


def _count_lookup(summary: TraceSummary, record: Lookup, hashes: list[bytes], seen: set[BlockName]) -> None:
    prompt = [(record.model, record.salt, record.world_size, each) for each in hashes]
    hits = next((index for index, block in enumerate(prompt) if block not in seen), len(prompt))
    seen.update(prompt[hits:])
    summary.requested_chunks += len(prompt)
    summary.ceiling_chunks += hits
    summary.distinct_chunks = len(seen)
