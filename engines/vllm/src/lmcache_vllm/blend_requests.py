"""Blends in the scheduler: which requests reuse chunks that are not a prefix, and how far each of them is.

A blend begins when vLLM gave its request blocks. Every rank loads what it can; what one rank lacks is a gap for all. Then each
step names the blend, or a cancel ends it. It is over when all ranks have named the request as received, in any case.

Whatever is computed over an approximate token is approximate: from the first moved token on a request is tainted, and
nothing of it is stored, unless under the approximate name, which only requests that blend look up. It is clean again when
vLLM computes those tokens itself, or when a blend has computed all of them.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lmcache_vllm.blend_choice import BlendChoice
from lmcache_vllm.lookup import Lookup
from lmcache_vllm.metadata import BlendCancel, BlendLoad, BlendLoaded, BlendResult, BlendStep, Transfer, WorkerReport
from lmcache_vllm.request_state import RequestState
from lmcache_vllm.segments import cut
from lmcache_vllm.server_port import ServerPort
from lmcache_vllm.settings import Settings
from lmcache_vllm.stats import Counters

logger = logging.getLogger(__name__)

FAILURES_MAX: Final = 3
"""Failed passes in a row after which nothing is blended any more."""
_LOAD_TIMEOUTS: Final = 3
"""How many of its time-outs a worker may take to load: it may wait for one before it begins."""
_PASS_SECONDS: Final = 300.0
"""And how long a blend that was loaded may wait for its end, or for that of a blend before it."""


@dataclass(slots=True)
class _Blend:
    load: BlendLoad
    choice: BlendChoice
    began: float
    deadline: float
    planned: bool = False
    loaded: BlendLoaded | None = None
    step: BlendStep | None = None
    result: BlendResult | None = None
    cancel: str = ""
    """Why it is to end, in a word; empty: it is not."""
    cancelled: bool = False
    """The workers were notified."""

    @property
    def start(self) -> int:
        """The first token that ranks may lack."""
        return self.step.start if self.step else 0

    @property
    def kept_tokens(self) -> int:
        """That were loaded as an earlier turn has left them."""
        if self.step is None:
            return 0
        load, loaded = self.load, zip(self.load.segments, self.step.loaded, strict=True)
        kept = [segment for segment, there in loaded if there and segment.start in load.kept]
        return sum(min(segment.end, load.end) - segment.start for segment in kept)


class BlendRequests:
    """One thread. Nothing raises because of the server or a worker."""

    def __init__(
        self,
        settings: Settings,
        port: ServerPort,
        counters: Counters,
        clock: Callable[[], float],
        workers: int,
        separator: Sequence[int] = (),
    ) -> None:
        """`workers` load for each blend, and compute it. `separator`: tokens at which prompts are cut into documents; none:
        they are not."""
        self._port = port
        self._counters = counters
        self._clock = clock
        self._workers = workers
        self.keeps = settings.blend_keep
        """What is approximate is stored for the next turn of its conversation, and looked up."""
        self._separator = separator
        self._min_tokens = settings.blend_min_tokens
        self._load_seconds = _LOAD_TIMEOUTS * settings.timeout_seconds
        self._blends: dict[int, _Blend] = {}
        self._by_request: dict[str, _Blend] = {}
        self._last_end = clock()
        self._failures = 0
        self._is_off = False

    def segments(self, state: RequestState) -> tuple[range, ...]:
        """Documents of the prompt of a request that blends, or would if something was found."""
        if state.segments is None:
            facts = state.facts
            blends = facts.blend is not None and not facts.blend.refused
            state.segments = cut(facts.tokens[: facts.prompt_tokens], self._separator) if blends else ()
        return () if self._is_off else state.segments

    # Before the request has blocks

    def wants(self, state: RequestState) -> bool:
        """Whether to ask the server for more than a prefix."""
        choice = state.facts.blend
        if choice is None:
            return False
        refused = self._refusal(state, choice)
        state.unblended = refused or state.unblended
        return not refused

    def _refusal(self, state: RequestState, choice: BlendChoice) -> str:
        if choice.refused:
            return choice.refused
        if not state.may_blend:
            return "failed"
        if self._is_off:
            return "off"
        if len(state.facts.tokens) <= self._min_tokens:
            return "short"
        return "" if self._port.blends else "server"

    def end(self, state: RequestState, lookup: Lookup | None, computed: int) -> int:
        """Where the last token lies that a blend would provide; 0: there is none to be made. The last token of all is
        computed in any case: its output is what is asked for."""
        choice = state.facts.blend
        if lookup is None or choice is None or not lookup.asks_segments:
            return 0
        last = len(state.facts.tokens) - 1
        end = min(lookup.segments[-1].end, last) if lookup.segments and not choice.to_the_end else last
        tokens = sum(max(0, min(segment.end, end) - segment.start) for segment in lookup.segments)
        if not lookup.segments:
            state.unblended = "no_match"
        elif tokens < max(1, self._min_tokens):
            state.unblended = "few_tokens"
        elif computed:  # vLLM has no prefix cache of its own beside blending
            state.unblended = "prefix_cache"
        elif not self.wants(state):
            pass
        else:
            return end
        return 0

    # From the blocks to the end of the blend

    def begin(
        self, state: RequestState, lookup: Lookup, prefix: Transfer, end: int, block_ids: tuple[int, ...]
    ) -> None:
        """Blend `[prefix.end, end)` into the request's blocks, of which `block_ids` are all from the first token on."""
        choice = state.facts.blend
        assert choice is not None, "end comes first"
        segments = tuple(segment for segment in lookup.segments if segment.start < end)
        tokens = array("i", state.facts.tokens[: max(end, segments[-1].end)]).tobytes()
        load = BlendLoad(
            prefix, segments, end, block_ids, tokens, choice.selector, choice.ratios, lookup.kept, lookup.chains
        )
        now = self._clock()
        blend = _Blend(load, choice, now, now + self._load_seconds)
        self._blends[load.id] = self._by_request[load.request_id] = blend
        inexact = (segment.start for segment in segments if not segment.exact or segment.start in lookup.kept)
        state.tainted_from = min(inexact, default=None)

    def planned_blocks(self) -> Iterator[int]:
        """Those that loads of the next plan write."""
        for blend in self._blends.values():
            if not blend.planned:
                yield from blend.load.block_ids

    def plan(self) -> tuple[tuple[BlendLoad, ...], tuple[BlendStep, ...], tuple[BlendCancel, ...]]:
        """What the next step does of all blends."""
        loads, steps, cancels = [], [], []
        now = self._clock()
        for blend in self._blends.values():
            if not blend.planned:
                blend.planned = True
                loads.append(blend.load)
                continue
            if now > self._deadline(blend) and not blend.cancel:
                blend.cancel = "late"
                logger.warning("a blend takes too long and is ended request=%s", blend.load.request_id)
            if blend.cancel and not blend.cancelled:
                blend.cancelled = True
                cancels.append(BlendCancel(blend.load.id, blend.start))
            elif blend.step and not blend.cancel:
                steps.append(blend.step)
        return tuple(loads), tuple(steps), tuple(cancels)

    def _deadline(self, blend: _Blend) -> float:
        """Passes take turns: what is over shows that they go on."""
        return max(blend.deadline, self._last_end + _PASS_SECONDS) if blend.step else blend.deadline

    def note(self, report: WorkerReport) -> None:
        """What ranks said of blends; results of a step come before its finished receives."""
        if report.blend_refused and not self._is_off:
            self._turn_off("; ".join(sorted(report.blend_refused)))
        for number, loaded in report.blend_loaded.items():
            if blend := self._blends.get(number):
                self._note_loaded(blend, loaded)
        for number, result in report.blend_results.items():
            if blend := self._blends.get(number):
                blend.result = blend.result.merged(result) if blend.result else result
                blend.cancel = blend.cancel or blend.result.failed  # other ranks may wait for the one that failed

    def _note_loaded(self, blend: _Blend, loaded: BlendLoaded) -> None:
        if len(loaded.segments) != len(blend.load.segments):
            loaded = BlendLoaded(loaded.ranks, False, (False,) * len(blend.load.segments))
        blend.loaded = blend.loaded.merged(loaded) if blend.loaded else loaded
        if blend.loaded.ranks < self._workers or blend.step:
            return
        start = blend.load.prefix.end if blend.loaded.prefix else 0
        blend.step = BlendStep(blend.load.id, start, blend.loaded.segments)
        blend.deadline = self._clock() + _PASS_SECONDS
        if not any(blend.loaded.segments) and not blend.cancel:
            blend.cancel = "load"

    def cancel(self, request_id: str) -> None:
        """The request is over: its blend ends as soon as the workers can end it."""
        if blend := self._by_request.get(request_id):
            blend.cancel = blend.cancel or "aborted"

    def received(self, request_id: str, state: RequestState | None) -> None:
        """All ranks have named the request as received: its blend is over, if it had one. `state`: None, if it is over."""
        blend = self._by_request.pop(request_id, None)
        if blend is None:
            return
        del self._blends[blend.load.id]
        self._last_end = self._clock()
        self._counters.add("blend_seconds", self._last_end - blend.began)
        if blend.result and not blend.result.failed:
            self._succeeded(blend, blend.result, state)
        else:
            self._failed(blend, state)

    def _succeeded(self, blend: _Blend, result: BlendResult, state: RequestState | None) -> None:
        if not blend.choice.is_own:
            self._failures = 0
        self._counters.add("blend_reused_tokens", result.reused)
        self._counters.add("blend_recomputed_tokens", result.recomputed)
        self._counters.add("blend_gap_tokens", result.gaps)
        self._counters.add("blend_kept_tokens", blend.kept_tokens)
        if state is None:
            return
        state.blended, state.kept_tokens = result, blend.kept_tokens
        if not result.reused:  # every token was computed, over exact ones
            state.tainted_from = None

    def _failed(self, blend: _Blend, state: RequestState | None) -> None:
        """What is tainted stays so until vLLM computes it."""
        if state is not None:
            state.may_blend = False
            state.unblended = "failed"
        reason = (blend.result.failed if blend.result else blend.cancel) or "no_result"
        if reason == "aborted":
            return
        self._counters.add("blend_failures", reason=reason)
        logger.warning("a blend failed, its tokens are computed request=%s reason=%s", blend.load.request_id, reason)
        if reason != "load" and not blend.choice.is_own:
            self._failures += 1
            if self._failures == FAILURES_MAX and not self._is_off:
                self._turn_off(f"{FAILURES_MAX} blends in a row failed, the last one with the reason {reason}")

    def _turn_off(self, reason: str) -> None:
        self._is_off = True
        logger.error("nothing is blended any more: %s", reason)

    # The end of the request

    def count(self, state: RequestState) -> None:
        """The request is over: count whether it was blended."""
        if state.blended:
            self._counters.add("blend_requests")
        elif choice := state.facts.blend:
            reason = state.unblended or choice.refused or "not_looked_up"
            self._counters.add("blend_skipped_requests", reason=reason)

    @staticmethod
    def answer(state: RequestState) -> dict[str, Any] | None:
        """What the request is answered, as `lmcache.blend` in kv_transfer_params; None: nothing."""
        choice = state.facts.blend
        if choice is None:
            return None
        if result := state.blended:
            return {
                "reused_tokens": result.reused,
                "recomputed_tokens": result.recomputed,
                "gap_tokens": result.gaps,
                "kept_tokens": state.kept_tokens,
                "selector": choice.selector,
                "recompute_ratios": list(choice.ratios),
            }
        reason = state.unblended or choice.refused
        return {"not_blended": choice.message or reason} if choice.asked and reason else None
