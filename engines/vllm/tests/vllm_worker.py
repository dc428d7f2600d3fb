"""vLLM's worker in miniature: it computes, stores and loads, and checks what it reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from engines.vllm.tests.fake_server import FakeServer
from engines.vllm.tests.vllm_steps import Request, Step, Write, kv_of
from lmcache_client.engine_key import PADDING
from lmcache_kv_layout import NO_BLOCK
from lmcache_vllm.metadata import SegmentPlace, StepPlan, Transfer, WorkerReport
from lmcache_vllm.placement import CacheGroup

EMPTY = "never written"
ABSENT = "behind a tail"


class StepResults(NamedTuple):
    report: WorkerReport
    received: dict[str, set[int]]
    """By request whose load is over: blocks that it did not get."""
    sent: set[str]
    """Finished requests of which nothing is being stored any more."""


class WorkerModel:
    """`requests` and `users`, by block, are the scheduler's own: what is read and written is checked against them."""

    def __init__(
        self,
        server: FakeServer,
        groups: Sequence[CacheGroup],
        blocks: int,
        requests: Mapping[str, Request],
        users: Mapping[int, int],
    ) -> None:
        self._server, self._groups, self._requests, self._users = server, tuple(groups), requests, users
        self._memory: list[list[dict[int, Any]]] = [[{} for _ in range(blocks)] for _ in self._groups]
        self._loads: list[Transfer] = []
        self._stores: list[Transfer] = []
        self._finishing: set[str] = set()
        self._over: Counter[int] = Counter()
        self._received: dict[str, set[int]] = {}
        self.loaded_tokens = self.stored_segments = 0

    def run(self, step: Step, chooses: Callable[[str, int], bool]) -> StepResults:
        """`chooses` says which transfers end in it, and which loads fail."""
        for store in [store for store in self._stores if store.id in step.plan.fence]:
            self._store(store)
        self._blend(step.plan, chooses)
        for write in step.writes:
            self._forward(write)
        self._loads += step.plan.loads
        self._stores += step.plan.stores
        self._finishing.update(step.plan.finishing)
        for store in list(self._stores):
            if chooses("store", store.id):
                self._store(store)
        for load in list(self._loads):
            if chooses("load", load.id):
                self._load(load, fails=chooses("fail", load.id))
        return self._results()

    def _blend(self, plan: StepPlan, chooses: Callable[[str, int], bool]) -> None:
        """Passes of blends, and ends of them. Nothing is blended here."""

    def _results(self) -> StepResults:
        received, self._received = self._received, {}
        sent = self._finishing - {store.request_id for store in self._stores}
        self._finishing -= sent
        report = WorkerReport(dict(self._over), frozenset(name for name, bad in received.items() if bad))
        self._over = Counter()
        return StepResults(report, received, sent)

    def _forward(self, write: Write) -> None:
        request, start, end = write.request, write.start, write.start + write.count
        salt, truth = request.facts.cache_salt, request.truth
        for memory, group, table in zip(self._memory, self._groups, write.tables, strict=True):
            first = 0 if group.window_tokens < 0 else max(0, start - group.window_tokens + 1)
            for position in range(first, start):
                seen = memory[table[position // group.block_tokens]].get(position % group.block_tokens, EMPTY)
                assert seen == kv_of(salt, truth, position), f"{request.id} computes on foreign KV at {position}"
            for position in range(start, end):
                memory[table[position // group.block_tokens]][position % group.block_tokens] = kv_of(
                    salt, truth, position
                )

    def _slots(self, memory: list[dict[int, Any]], size: int, block: int) -> tuple[Any, ...]:
        return tuple(memory[block].get(slot, EMPTY) for slot in range(size))

    def _store(self, store: Transfer) -> None:
        """Reads the blocks as they are now."""
        self._stores.remove(store)
        self._over[store.id] += 1
        request = self._requests[store.request_id]
        chunk = self._server.chunk_tokens
        contents: list[tuple[Any, ...]] = []
        tokens = msgspec.msgpack.decode(store.tokens)
        if store.segment is not None:
            self._store_segment(store, store.segment, request, tokens)
            return
        for number in range((store.end - store.start) // chunk):
            content: list[Any] = []
            for memory, group, ids in zip(self._memory, self._groups, store.block_ids, strict=True):
                per_chunk = chunk // group.block_tokens
                for block in ids[number * per_chunk : (number + 1) * per_chunk]:
                    assert block, "the null block is stored"
                    absent = (ABSENT,) * group.block_tokens
                    content += absent if block == NO_BLOCK else self._slots(memory, group.block_tokens, block)
            expected = [
                ABSENT if tokens[position] == PADDING else kv_of(request.facts.cache_salt, request.truth, position)
                for position in range(store.start + number * chunk, store.start + (number + 1) * chunk)
            ]
            if store.approximate:
                assert EMPTY not in content, f"{store.request_id} stores what was never written"
                assert request.facts.blend is not None, (
                    f"{store.request_id} does not blend, and stores what is approximate"
                )
            else:
                assert content == expected * len(self._groups), f"{store.request_id} stores other KV than its own"
            contents.append(tuple(content))
        if self._server.server is not None and (store.start % chunk, store.end % chunk) == (0, 0):
            self._server.put(store, contents)

    def _store_segment(self, store: Transfer, place: SegmentPlace, request: Request, tokens: Sequence[int]) -> None:
        """The group's rows, from any slot on."""
        (memory,), (group,), (ids,) = self._memory, self._groups, store.block_ids
        salt, size = request.facts.cache_salt, group.block_tokens
        assert request.facts.blend is not None, f"{request.id} does not blend, and stores a document"
        assert list(tokens[: place.tokens]) == request.truth[place.start : place.end], "another document"
        assert set(tokens[place.tokens :]) <= {PADDING}
        skipped = place.start % size
        rows = [memory[ids[at // size]].get(at % size, EMPTY) for at in range(skipped, skipped + place.tokens)]
        assert EMPTY not in rows, f"{request.id} stores what was never written"
        if not store.approximate:
            exact = [kv_of(salt, request.truth, position) for position in range(place.start, place.end)]
            assert (place.start, rows) == (0, exact), f"{request.id} stores other KV than its own"
        rows += [ABSENT] * (len(tokens) - place.tokens)
        chunk = store.chunk_tokens
        if self._server.server is not None and chunk == self._server.chunk_tokens:
            self._server.put(store, [tuple(rows[at : at + chunk]) for at in range(0, len(rows), chunk)])
            self.stored_segments += 1

    def _load(self, load: Transfer, fails: bool) -> None:
        self._loads.remove(load)
        self._over[load.id] += 1
        bad: set[int] = set()
        contents = None if fails else self._server.retrieve(load)
        if contents is None:
            bad = {block for ids in load.block_ids for block in ids if block}
        else:
            self._scatter(load, contents)
        self._received[load.request_id] = bad

    def _scatter(self, load: Transfer, contents: Sequence[Sequence[Any]]) -> None:
        chunk = self._server.chunk_tokens
        for number, content in enumerate(contents):
            place = 0
            for memory, group, ids in zip(self._memory, self._groups, load.block_ids, strict=True):
                size = group.block_tokens
                for block in ids[number * chunk // size : (number + 1) * chunk // size]:
                    if block:
                        assert ABSENT not in content[place : place + size], "what is behind a tail is loaded"
                        assert self._users[block] == 1, "a block that others share is overwritten"
                        memory[block] = dict(enumerate(content[place : place + size]))
                        self.loaded_tokens += size
                    place += size
