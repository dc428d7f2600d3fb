"""What a replay does, in order: a recording's operations, without what a worker's transfers took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from lmcache_core import ConfigError
from lmcache_observability.trace.reader import Entry
from lmcache_observability.trace.records import Answer, Began, Ended, Lookup, Stored

_ANY_CHUNK_BYTES: Final = 64 << 10
_CHUNKS_MAX: Final = 1 << 27
"""At 8 bytes each."""


@dataclass(frozen=True, slots=True)
class AskStep:
    at: float
    request: str
    model: str
    salt: str
    hashes: list[bytes]
    recorded_hits: int | None
    """None where the recording has no answer."""


@dataclass(frozen=True, slots=True)
class StoreStep:
    at: float
    request: str
    first_chunk: int
    end_chunk: int


@dataclass(frozen=True, slots=True)
class EndStep:
    at: float
    request: str


ReplayStep = AskStep | StoreStep | EndStep


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    chunk_tokens: int
    chunk_bytes: dict[str, int]
    """By model: of all shards of a tensor-parallel engine together, which are replayed as one."""
    steps: list[ReplayStep]


def plan_replay(path: str, entries: Iterable[Entry], max_lookups: int | None) -> ReplayPlan:
    """Raises ConfigError for a recording without a lookup."""
    chunk_tokens, steps = 0, list[ReplayStep]()
    shards: dict[str, dict[int, int]] = {}
    asked: dict[str, tuple[int, AskStep]] = {}
    lookups = chunks = 0
    for record, hashes in entries:
        match record:
            case Began():
                chunk_tokens = record.chunk_tokens
            case Lookup() if max_lookups is None or lookups < max_lookups:
                lookups += 1
                chunks += len(hashes)
                if chunks > _CHUNKS_MAX:
                    raise ConfigError(
                        f"{path} asks for more than {_CHUNKS_MAX:,} chunks, for which a replay has no memory; "
                        f"replay less of it with --max-requests {lookups - 1}"
                    )
                ask = AskStep(record.at, record.request, record.model, record.salt, hashes, None)
                asked[record.request] = (len(steps), ask)
                steps.append(ask)
            case Answer() if record.request in asked:
                place, ask = asked[record.request]
                steps[place] = AskStep(ask.at, ask.request, ask.model, ask.salt, ask.hashes, record.hits)
            case Stored() if record.chunks and _is_of(record, asked):
                shards.setdefault(record.model, {})[record.kv_rank] = record.payload_bytes // record.chunks
                first, end = record.first_chunk, record.first_chunk + record.chunks
                steps.append(StoreStep(record.at, record.request, first, end))
            case Ended() if record.request in asked:
                steps.append(EndStep(record.at, record.request))
            case _:
                pass
    if not lookups or not chunk_tokens:
        raise ConfigError(f"{path} holds no lookup that could be replayed")
    models = {step.model for step in steps if isinstance(step, AskStep)}
    chunk_bytes = {model: sum(shards.get(model, {}).values()) or _ANY_CHUNK_BYTES for model in models}
    return ReplayPlan(chunk_tokens, chunk_bytes, steps)


def _is_of(record: Stored, asked: Mapping[str, tuple[int, AskStep]]) -> bool:
    """Engines may call requests alike: what another one stored is not stored for this one."""
    if record.request not in asked:
        return False
    ask = asked[record.request][1]
    return (ask.model, ask.salt) == (record.model, record.salt)
