"""A server as the scheduler side sees it, with what it stores and holds in plain sight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lmcache_client import EngineKey, NoAnswerError, Operation
from lmcache_client.blend import BlendAnswer, BlendSegment
from lmcache_vllm.server_port import AwaitedHandoff, Question, Server

Content = tuple[Any, ...]
"""Of a chunk: for each KV cache group what lies in its slots."""


@dataclass
class Pending:
    """A lookup that was not answered."""

    key: EngineKey
    tokens: tuple[int, ...]
    future: Future[Any]
    blends: bool = False


@dataclass
class FakeServer:
    """Implements ServerPort. Lookups are answered when the test says so, or at once."""

    chunk_tokens: int
    answers_at_once: bool = True
    accepts: bool = False
    """It says that it has taken a lookup, before it answers."""
    server: Server | None = None
    losses: int = 0
    objects: dict[tuple[Any, ...], Content] = field(default_factory=dict)
    holds: dict[str, set[int]] = field(default_factory=dict)
    """By request: chunks."""
    pending: dict[str, Pending] = field(default_factory=dict)
    keys: list[EngineKey] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    cleared: int = 0
    closed: bool = False
    handed_over: list[tuple[str, str, tuple[Any, ...]]] = field(default_factory=list)
    """What was said of hand-offs: operation, id and other arguments."""
    handoff_over: Future[None] | None = None
    """What lookups that have a hand-off wait for."""
    boots: int = 0
    blends: bool = False
    """It has segments for those who ask for them."""
    indexes: bool = True
    """It finds chunks by their tokens."""
    ranks: int = 1
    """Each of them comes for what is held."""
    segments: dict[str, dict[bytes, tuple[Any, ...]]] = field(default_factory=dict)
    """By request: names of the chunks that are held for it beside its prefix, by hash."""
    picked: Counter[Any] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.come()

    # What a test does

    def come(self, chunk_tokens: int | None = None) -> None:
        """Start, empty."""
        self.boots += 1
        self.chunk_tokens = chunk_tokens or self.chunk_tokens
        self.objects.clear()
        self.server = Server(f"boot {self.boots}", self.chunk_tokens, "own server")

    def go(self) -> None:
        """End: what it has is gone, and requests get no answer."""
        self.server = None
        self.losses += 1
        self.holds.clear()
        self.segments.clear()
        self.picked.clear()
        for waiting in self.pending.values():
            waiting.future.set_exception(NoAnswerError("the server is gone"))
        self.pending.clear()

    def answer(self, request_id: str) -> None:
        waiting = self.pending.pop(request_id)
        hits = 0
        while (
            hits < waiting.key.end // self.chunk_tokens and self.name(waiting.key, waiting.tokens, hits) in self.objects
        ):
            hits += 1
        self.holds[request_id] = set(range(hits))
        if not waiting.blends:
            waiting.future.set_result(hits)
            return
        found = tuple(self._segments(waiting, hits * self.chunk_tokens))
        self.segments[request_id] = {segment.hash: self._by_hash(segment.hash) for segment in found}
        waiting.future.set_result(BlendAnswer(hits * self.chunk_tokens, found))

    def _segments(self, waiting: Pending, start: int) -> Iterator[BlendSegment]:
        """Chunks of the same salt with the tokens that are at `start` or behind it, wherever they were stored."""
        size, tokens = self.chunk_tokens, waiting.tokens
        own_starts = {
            at
            for at in range(0, len(tokens) - size + 1, size)
            if self.name(waiting.key, tokens, at // size) in self.objects
        }
        while start + size <= len(tokens):
            own = self.name(waiting.key, tokens, start // size) if start in own_starts else None
            names = [name for name in self.objects if name[0] == space_of(waiting.key)]
            alike = [name for name in names if name[-size:] == tokens[start : start + size]]
            if own_starts.intersection(range(start + 1, start + size)) or not (self.indexes or own):
                alike = []
            if alike:
                name = own or alike[0]
                old = len(name) - 1 - size
                yield BlendSegment(old, old + size, start, start + size, _hash(name), exact=name == own)
            start += size if alike else 1

    def _by_hash(self, given: bytes) -> tuple[Any, ...]:
        return next(name for name in self.objects if _hash(name) == given)

    def fetch(self, request_id: str, given: bytes) -> Content | None:
        """A segment that is held for the request, for one rank."""
        name = self.segments.get(request_id, {}).get(given)
        return None if name is None else self.objects[name]

    def evict(self, name: tuple[Any, ...]) -> None:
        """Unless it is held."""
        if not any(self.holds.values()) and not any(name in held.values() for held in self.segments.values()):
            self.objects.pop(name, None)

    def name(self, key: Any, tokens: Sequence[int], chunk: int) -> tuple[Any, ...]:
        return (space_of(key), *tokens[: (chunk + 1) * self.chunk_tokens])

    def put(self, transfer: Any, contents: Sequence[Content]) -> None:
        tokens = msgspec.msgpack.decode(transfer.tokens)
        for number, content in enumerate(contents, transfer.start // self.chunk_tokens):
            self.objects.setdefault(self.name(transfer, tokens, number), content)

    def retrieve(self, transfer: Any) -> list[Content] | None:
        """Everything that was held for the request, or None."""
        tokens = msgspec.msgpack.decode(transfer.tokens)
        wanted = range(transfer.start // self.chunk_tokens, transfer.end // self.chunk_tokens)
        held = self.holds.get(transfer.request_id, set())
        if transfer.chunk_tokens != self.chunk_tokens or not held.issuperset(wanted):
            return None
        self.picked.update((transfer.request_id, chunk) for chunk in wanted)
        held.difference_update(
            [chunk for chunk in wanted if self.picked[(transfer.request_id, chunk)] % self.ranks == 0]
        )
        return [self.objects[self.name(transfer, tokens, chunk)] for chunk in wanted]

    def holds_anything(self) -> bool:
        return any(self.holds.values()) or any(self.segments.values()) or bool(self.pending)

    # ServerPort

    def hand_over(self, step: Operation, handoff_id: str, *facts: Any) -> None:
        self.handed_over.append((step.name, handoff_id, facts))

    def look_up(self, key: EngineKey, handoff: AwaitedHandoff | None = None) -> Question | None:
        return self._look_up(key, handoff, blends=False)

    def look_up_blend(self, key: EngineKey) -> Question | None:
        return self._look_up(key, None, blends=True)

    def _look_up(self, key: EngineKey, handoff: AwaitedHandoff | None, *, blends: bool) -> Question | None:
        if self.server is None:
            return None
        self.keys.append(key)
        self._drop(key.request_id)
        future: Future[Any] = Future()
        self.pending[key.request_id] = Pending(key, tuple(_decoded(key)), future, blends)
        if self.answers_at_once:
            self.answer(key.request_id)
        accepted: Future[None] = Future()
        if self.accepts:
            accepted.set_result(None)
        return Question(accepted, future, self.handoff_over if handoff else None)

    def free(self, key: EngineKey) -> None:
        first, last = -(-key.start // self.chunk_tokens), key.end // self.chunk_tokens
        self.holds.get(key.request_id, set()).difference_update(range(first, last))

    def end(self, request_id: str) -> None:
        self.ended.append(request_id)
        self._drop(request_id)

    def clear(self) -> bool:
        self.cleared += 1
        return self.server is not None

    def close(self) -> None:
        self.closed = True

    def _drop(self, request_id: str) -> None:
        self.holds.pop(request_id, None)
        self.segments.pop(request_id, None)
        for picked in [picked for picked in self.picked if picked[0] == request_id]:
            del self.picked[picked]
        waiting = self.pending.pop(request_id, None)
        if waiting:
            waiting.future.set_result(BlendAnswer() if waiting.blends else 0)


def space_of(key: Any) -> str:
    """A salt, and what is approximate apart from what is exact: of a lookup's key, of a transfer, of a request as it came."""
    name, _, variant = getattr(key, "model_name", "").partition("%%")
    variant = variant or getattr(key, "variant", "")
    if not (name.endswith("##blend") or getattr(key, "approximate", False)):
        return str(key.cache_salt)
    return f"{key.cache_salt}##blend{variant and f'%%{variant}'}"


def _hash(name: tuple[Any, ...]) -> bytes:
    return repr(name).encode()


def _decoded(key: EngineKey) -> list[int]:
    assert isinstance(key.token_ids, msgspec.Raw)
    tokens: list[int] = msgspec.msgpack.decode(key.token_ids)
    return tokens
