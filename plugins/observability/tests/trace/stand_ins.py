"""Chunk hashes and recordings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from lmcache_core import ChunksRetrieved, ChunksStored, Event, LookupFinished, LookupHashes, RequestEnded
from lmcache_observability.trace.reader import Entry, TraceReader
from lmcache_observability.trace.settings import TraceSettings
from lmcache_observability.trace.trace_subscriber import open_trace
from plugins.observability.tests.server_stand_in import ServerStandIn


def chain(blocks: Sequence[int]) -> bytes:
    """Hashes as of a prompt of these blocks: each covers its block and all before it."""
    last, hashes = b"", []
    for block in blocks:
        last = sha256(last + block.to_bytes(8, "little")).digest()
        hashes.append(last)
    return b"".join(hashes)


def request(
    name: str, blocks: Sequence[int], hits: int, *, at: float = 100.0, model: str = "m", salt: str = ""
) -> list[Event]:
    """What happens to a request that hits that number of chunks and stores the others."""
    count = len(blocks)
    about: dict[str, Any] = {"request_id": name, "model_name": model, "cache_salt": salt}
    events: list[Event] = [
        LookupHashes(at=at, world_size=1, prompt_tokens=count * 256, chunk_hashes=chain(blocks), **about),
        LookupFinished(at=at + 0.01, requested_chunks=count, hit_chunks=hits, l2_chunks=0, seconds=0.01, **about),
    ]
    if hits:
        events.append(ChunksRetrieved(at=at + 0.02, kv_rank=0, chunks=hits, payload_bytes=hits * 4096, **about))
    if hits < count:
        new = count - hits
        events.append(
            ChunksStored(at=at + 0.03, kv_rank=0, chunks=new, payload_bytes=new * 4096, first_chunk=hits, **about)
        )
    return [*events, RequestEnded(at=at + 0.04, request_id=name)]


def record(path: Path, events: Iterable[Event], **settings: object) -> Path:
    """A whole recording of these events."""
    subscriber = open_trace(TraceSettings.model_validate({"output": path, **settings}))
    subscriber.begin(ServerStandIn())
    calls = subscriber.subscriptions()
    for event in events:
        for kind, call in calls.items():
            if isinstance(event, kind):
                call(event)
    subscriber.batch_done()
    subscriber.close()
    return path


def read(path: Path) -> list[Entry]:
    return list(TraceReader(str(path)))
