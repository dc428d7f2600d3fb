"""vLLM's workers in miniature, of an engine that blends: several ranks, each with a memory of its own.

What a pass computes over KV that is not exact is `TAINTED`, and so is what vLLM computes behind it.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from engines.vllm.tests.fake_server import Content, FakeServer
from engines.vllm.tests.vllm_steps import Request, Step, Write, kv_of
from engines.vllm.tests.vllm_worker import ABSENT, EMPTY, StepResults, WorkerModel
from lmcache_vllm.metadata import (
    BlendLoad,
    BlendLoaded,
    BlendResult,
    BlendStep,
    SegmentChain,
    StepPlan,
    WorkerReport,
    kept_id,
)
from lmcache_vllm.placement import CacheGroup

TAINTED = "computed over other KV than its own"
SLICE = 7
"""Tokens of a pass that one step looks at."""


@dataclass
class _Blend:
    load: BlendLoad
    is_loading: bool = True
    at: int | None = None
    """Where the next slice begins."""
    reused: int = 0
    recomputed: int = 0
    gaps: int = 0


class BlendRank(WorkerModel):
    """One rank. It has one KV cache group."""

    def __init__(
        self,
        server: FakeServer,
        groups: Sequence[CacheGroup],
        blocks: int,
        requests: Mapping[str, Request],
        users: Mapping[int, int],
    ) -> None:
        super().__init__(server, groups, blocks, requests, users)
        self._blends: dict[int, _Blend] = {}
        self._blend_loaded: dict[int, BlendLoaded] = {}
        self._blend_results: dict[int, BlendResult] = {}
        self._ended: dict[str, set[int]] = {}
        self._approximate: set[str] = set()
        """Requests that may see KV that is not exact."""
        self.blended_tokens = self.kept_tokens = self.chained_tokens = 0

    # Blends

    def _blend(self, plan: StepPlan, chooses: Callable[[str, int], bool]) -> None:
        for cancel in plan.blend_cancels:
            if blend := self._blends.get(cancel.id):
                self._end(blend, cancel.start)
        for step in plan.blends:
            if blend := self._blends.get(step.id):
                self._pass(blend, step, fails=chooses("fail", step.id))
        for load in plan.blend_loads:
            self._blends[load.id] = _Blend(load)
            self._approximate.discard(load.request_id)
        for blend in self._blends.values():
            if blend.is_loading and chooses("load", blend.load.id):
                self._load_blend(blend, chooses)

    def _end(self, blend: _Blend, failed_from: int) -> None:
        load = blend.load
        del self._blends[load.id]
        size = self._groups[0].block_tokens
        self._ended[load.request_id] = set(load.block_ids[failed_from // size :]) if failed_from < load.end else set()

    def _load_blend(self, blend: _Blend, chooses: Callable[[str, int], bool]) -> None:
        load, blend.is_loading = blend.load, False
        prefix = True
        if load.prefix.chunks:
            contents = None if chooses("fail", load.id) else self._server.retrieve(load.prefix)
            prefix = contents is not None
            if contents is not None:
                self._scatter(load.prefix, contents)
        flags = []
        chained = dict(each for chain in load.chains for each in self._chunks(load, chain, chooses))
        for segment in load.segments:
            if not segment.hash:
                rows = chained.get(segment.start)
                flags.append(rows is not None)
                for position in range(segment.start, min(segment.end, load.end)) if rows else ():
                    self._write(load, position, rows[position - segment.start])  # type: ignore[index]
                self.chained_tokens += segment.end - segment.start if rows else 0
                continue
            kept = segment.start in load.kept
            held_for = kept_id(load.request_id) if kept else load.request_id
            rows = None if chooses("fail", load.id) else self._server.fetch(held_for, segment.hash)
            if kept and rows is not None:
                assert self._requests[load.request_id].facts.blend is not None, "it did not ask to blend"
                self.kept_tokens += len(rows)
            flags.append(rows is not None)
            for position in range(segment.start, min(segment.end, load.end)) if rows else ():
                self._write(load, position, rows[position - segment.start])  # type: ignore[index]
        self._blend_loaded[load.id] = BlendLoaded(1, prefix, tuple(flags))

    def _chunks(
        self, load: BlendLoad, chain: SegmentChain, chooses: Callable[[str, int], bool]
    ) -> Iterator[tuple[int, Content]]:
        """Those of a document, by where in the prompt they begin."""
        size, place = chain.transfer.chunk_tokens, chain.transfer.segment
        assert place is not None
        contents = None
        if not chooses("fail", load.id):
            contents = self._server.retrieve(replace(chain.transfer, end=chain.found * size))
        for at, rows in enumerate(contents or ()):
            if (start := place.start + at * size) in chain.starts:
                assert ABSENT not in rows[: place.end - start], "what is behind a document is loaded"
                yield start, rows

    def _pass(self, blend: _Blend, step: BlendStep, *, fails: bool) -> None:
        load = blend.load
        if fails:
            self._blend_results[load.id] = BlendResult(0, 0, 0, "pass")
            self._end(blend, step.start)
            return
        there = {
            position: segment.exact
            for segment, is_there in zip(load.segments, step.loaded, strict=True)
            for position in range(segment.start, segment.end)
            if is_there
        }
        first = step.start if blend.at is None else blend.at
        blend.at = min(first + SLICE, load.end)
        for position in range(first, blend.at):
            every = load.id % 3  # none again, each second one, all
            if position in there and (there[position] or every == 0 or (every == 1 and position % 2)):
                blend.reused += 1
                continue
            blend.recomputed += position in there
            blend.gaps += position not in there
            self._write(load, position, self._computed(load, position))
        if blend.at == load.end:
            self._blend_results[load.id] = BlendResult(blend.reused, blend.recomputed, blend.gaps)
            self._approximate.add(load.request_id)
            self.blended_tokens += blend.reused
            self._end(blend, load.end)

    def _write(self, load: BlendLoad, position: int, value: Any) -> None:
        size = self._groups[0].block_tokens
        block = load.block_ids[position // size]
        assert self._users[block] == 1, "a block that others have is written"
        self._memory[0][block][position % size] = value

    def _computed(self, load: BlendLoad, position: int) -> Any:
        request = self._requests[load.request_id]
        tokens = array("i", load.token_ids)
        assert list(tokens[: load.end]) == request.truth[: load.end], "other tokens than the request has"
        return self._exact_or_tainted(request, load.block_ids, position)

    def _exact_or_tainted(self, request: Request, table: Sequence[int], position: int) -> Any:
        salt, size = request.facts.cache_salt, self._groups[0].block_tokens
        is_exact = True
        for before in range(position):
            seen = self._memory[0][table[before // size]].get(before % size, EMPTY)
            assert seen != EMPTY, f"{request.id} computes on nothing at {before}"
            is_exact &= seen == kv_of(salt, request.truth, before)
        return kv_of(salt, request.truth, position) if is_exact else TAINTED

    # What vLLM computes

    def _forward(self, write: Write) -> None:
        request = write.request
        if write.start == 0:
            self._approximate.discard(request.id)
        if request.id not in self._approximate:
            super()._forward(write)
            return
        size = self._groups[0].block_tokens
        for position in range(write.start, write.start + write.count):
            value = self._exact_or_tainted(request, write.tables[0], position)
            self._memory[0][write.tables[0][position // size]][position % size] = value

    def _results(self) -> StepResults:
        results = super()._results()
        report = replace(results.report, blend_loaded=self._blend_loaded, blend_results=self._blend_results)
        ended, self._ended = self._ended, {}
        self._blend_loaded, self._blend_results = {}, {}
        return StepResults(report, {**results.received, **ended}, results.sent)


class Ranks:
    """All ranks of a worker: a request is received, or sent, when each of them has said so."""

    def __init__(self, ranks: Sequence[BlendRank]) -> None:
        self.ranks = ranks
        self._received: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._bad: dict[str, set[int]] = {}

    @property
    def loaded_tokens(self) -> int:
        return sum(rank.loaded_tokens for rank in self.ranks)

    def run(self, step: Step, chooses: Callable[[str, int], bool]) -> StepResults:
        all_results = [rank.run(step, chooses) for rank in self.ranks]
        for results in all_results:
            self._received.update(results.received.keys())
            self._sent.update(results.sent)
            for name, bad in results.received.items():
                self._bad.setdefault(name, set()).update(bad)
        report: WorkerReport = reduce(WorkerReport.aggregate, (results.report for results in all_results))
        received = {name: self._bad.pop(name) for name in self._of_all(self._received)}
        return StepResults(report, received, set(self._of_all(self._sent)))

    def _of_all(self, counts: Counter[str]) -> list[str]:
        names = [name for name, count in counts.items() if count == len(self.ranks)]
        for name in names:
            del counts[name]
        return names
