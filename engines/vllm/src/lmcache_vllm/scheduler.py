"""The connector in vLLM's scheduler: what is looked up, loaded and stored, and when.

A request is looked up as soon as it is seen, so that the answer is there, or nearly, when vLLM asks for it. What the
server found is held for the request until its workers have loaded it, or until this side releases it: every lookup
ends in a load, a `free`, or the request's `end`.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from lmcache_client import EngineKey
from lmcache_vllm import block_slices
from lmcache_vllm.blend_requests import BlendRequests
from lmcache_vllm.block_slices import NULL_BLOCK
from lmcache_vllm.handoffs import GivenHandoffs
from lmcache_vllm.lookup import Lookup
from lmcache_vllm.metadata import StepPlan, Transfer, WorkerReport
from lmcache_vllm.placement import CacheGroup, Placement, block_span
from lmcache_vllm.request_facts import BlockTable, RequestFacts, StepFacts
from lmcache_vllm.request_state import RequestState
from lmcache_vllm.scheduler_lookups import PATIENCE_SECONDS, SchedulerLookups
from lmcache_vllm.segments import chain, is_found
from lmcache_vllm.server_port import Server, ServerPort
from lmcache_vllm.settings import Settings
from lmcache_vllm.stats import Counters
from lmcache_vllm.store_ledger import StoreCounters

logger = logging.getLogger(__name__)


class SchedulerSide:
    """Plain data in, plain data out. vLLM's thread calls everything; nothing raises because of the server."""

    def __init__(
        self,
        settings: Settings,
        placement: Placement,
        groups: Sequence[CacheGroup],
        port: ServerPort,
        *,
        workers: int,
        stores: bool = True,
        loads: bool = True,
        separator: Sequence[int] = (),
        clock: Callable[[], float] = time.monotonic,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """`workers` report each transfer, and the model name where `placement` has an empty one. Takes `port` over, and
        closes it. `separator`: as `BlendRequests` takes it."""
        self._groups = tuple(groups)
        self._port = port
        self._stores = stores
        self._loads = loads
        self._least = max(1, settings.min_retrieve_tokens)
        self._saves_decode = settings.save_decode
        self._tail_blocks = block_span(self._groups) if settings.save_tail else 0
        self._frees_early = any(group.window_tokens >= 0 for group in self._groups)
        # Failed blocks of a step are named one by one, which says enough with one table that is needed from its start.
        self._by_layer = settings.layerwise and len(self._groups) == 1 and not self._frees_early
        if settings.layerwise and not self._by_layer:
            logger.warning("layers are not loaded one by one: this model has several KV cache groups, or a window")
        self._layer_loads: dict[int, tuple[str, int]] = {}
        self._workers = workers
        self._planned_layer_loads: list[Transfer] = []
        self._late_stores: list[Transfer] = []
        self._counters = Counters()
        self._blends = BlendRequests(settings, port, self._counters, clock, workers, separator)
        self._lookups = SchedulerLookups(
            settings, placement, port, self._counters, clock, patience_seconds, self._blends, self._tail_blocks
        )
        self._ledger = StoreCounters(workers)
        self._given = GivenHandoffs(port)
        self._states: dict[str, RequestState] = {}
        self._ending: set[str] = set()  # requests that are over while workers load for them
        self._planned_loads: list[Transfer] = []
        self._allocated: dict[str, BlockTable] = {}
        self._finishing: list[str] = []
        self._losses = 0
        self._refused: Server | None = None
        self._names: frozenset[str] = frozenset()

    # Before vLLM gives a request its blocks

    def on_new_request(self, facts: RequestFacts) -> None:
        state = self._states[facts.request_id] = RequestState(facts)
        if facts.handoff and facts.handoff.gives and not facts.skip_reason and self._stores:
            key = partial(self._prompt_key, state)
            self._given.begin(facts.request_id, facts.handoff.id, key)
        if facts.skip_reason:
            self._counters.add("skipped_requests", reason=facts.skip_reason)
        elif self._loads:
            self._lookups.send_early(state, self._server)

    def matched_tokens(self, request_id: str, computed: int) -> tuple[int | None, bool]:
        """How many tokens behind the `computed` ones will be loaded, and whether the request waits for that outside of
        the steps. None: not known yet, ask again."""
        state = self._states.get(request_id)
        if state is None or not self._loads:
            return 0, False
        if state.allocated:
            state.begin_again()
        found = self._lookups.found(state, self._server)
        if found is None:
            return None, False
        state.computed = computed
        state.blend_end = self._blends.end(state, state.lookup, computed)
        if state.blend_end:
            return state.blend_end - computed, True
        # Of a whole prompt the last token is computed: its output is what is asked for.
        needed = found - computed - (found == len(state.facts.tokens))
        return (needed, not self._by_layer) if needed >= self._least else (0, False)

    # When vLLM has given it blocks

    @property
    def watches_blocks(self) -> bool:
        """Whether `on_allocated` needs blocks that no load here writes."""
        return self._frees_early and bool(self._ledger)

    def on_allocated(self, request_id: str, block_table: BlockTable, external: int) -> None:
        """`external` tokens are to be loaded into those blocks, behind the ones that vLLM had when it asked. A second
        call for the same blocks, once they are loaded, is ignored."""
        self._lookups.not_early(request_id)
        if not external and block_table:
            self._allocated[request_id] = block_table
        state = self._states.get(request_id)
        if state is None or state.allocated:
            return
        state.allocated = True
        lookup = state.lookup
        if lookup is None or not (lookup.hit_tokens or lookup.segments):
            return
        found, chunk = lookup.hit_tokens or 0, lookup.server.chunk_tokens
        state.stored = found
        if not external:
            if lookup.segments:
                self._lookups.release_all(lookup)
            else:
                self._lookups.free(lookup, 0, found)
            return
        self._counters.add("used_tokens", external)
        state.loading = not self._by_layer
        if state.blend_end:  # vLLM takes all of it for loaded, whatever has become of the server since
            self._begin_blend(state, lookup, block_table, state.blend_end)
            return
        start = state.computed // chunk * chunk
        end = min(-(-(state.computed + external) // chunk) * chunk, found)
        self._lookups.free(lookup, 0, start)
        self._lookups.free(lookup, end, found)
        ids = block_slices.to_load(block_table, self._groups, start, end, state.computed, chunk)
        load = self._transfer(state, self._ledger.new_id(), start, end, chunk, ids)
        if not self._by_layer:
            self._planned_loads.append(load)
            return
        self._layer_loads[load.id] = request_id, self._workers
        self._planned_layer_loads.append(load)

    def _begin_blend(self, state: RequestState, lookup: Lookup, block_table: BlockTable, end: int) -> None:
        (blocks,), (group,) = block_table, self._groups
        found, chunk = lookup.hit_tokens or 0, lookup.server.chunk_tokens
        ids = block_slices.to_load(block_table, self._groups, 0, found, 0, chunk)
        prefix = self._transfer(state, self._ledger.new_id(), 0, found, chunk, ids)
        self._blends.begin(state, lookup, prefix, end, tuple(blocks[: -(-end // group.block_tokens)]))

    # Each step

    def plan(self, step: StepFacts) -> StepPlan:
        """What the workers do in the step that vLLM is about to run."""
        server = self._server
        self._lookups.step_ends()
        fence = self._fence(step)
        self._allocated.clear()
        for request_id in step.scheduled:
            if state := self._states.get(request_id):
                state.ran = True
        stores = tuple(self._planned_stores(step, server)) if server and self._stores and self._may_store else ()
        loads, self._planned_loads = tuple(self._planned_loads), []
        finishing, self._finishing = tuple(self._finishing), []
        by_layer, self._planned_layer_loads = tuple(self._planned_layer_loads), []
        late, self._late_stores = tuple(self._late_stores), []
        return StepPlan(
            loads,
            late if self._by_layer else stores,
            fence,
            finishing,
            *self._blends.plan(),
            layer_loads=by_layer,
            layer_stores=stores if self._by_layer else (),
            idle=not step.scheduled,
        )

    @property
    def _may_store(self) -> bool:
        """What is computed in a step whose load may fail on another worker, or in the one behind it, is not stored before that
        is known. A worker alone stores nothing of a step in which its own load fails."""
        own = {load.id for load in self._planned_layer_loads} if self._workers == 1 else set()
        return self._layer_loads.keys() <= own

    def _fence(self, step: StepFacts) -> frozenset[int]:
        """Stores whose blocks others may write in this step. They are over when it begins, by the workers' promise, and
        need not be waited for."""
        if not self._ledger:
            return frozenset()
        fence = self._ledger.of(step.preempted)
        if self._frees_early:
            # A window releases blocks long before the request is over, and all others may be free: only those that
            # were given out again are written.
            fence |= self._ledger.reading(self._given_out(step))
        for store, request_id in self._ledger.forget(fence):
            self._given.store_over(request_id, store)
            if state := self._states.get(request_id):
                state.stores.discard(store)
        return fence

    def _given_out(self, step: StepFacts) -> frozenset[int]:
        """Blocks that this step or its loads may write, and that were not written for the same request before."""
        loads = (ids for load in self._planned_loads for ids in load.block_ids)
        tables = (table for request, table in self._allocated.items() if request not in step.scheduled)
        others = (ids for table in tables for ids in table)  # beside another connector, which loads into them
        blends = self._blends.planned_blocks()
        written = block_slices.written(step.new_blocks, self._groups)
        return frozenset(itertools.chain(written, blends, *loads, *others)) - {NULL_BLOCK}

    def _planned_stores(self, step: StepFacts, server: Server) -> Iterable[Transfer]:
        for request_id, (computed, count) in step.scheduled.items():
            state = self._states.get(request_id)
            if state is None or state.facts.skip_reason:
                continue
            state.use_server(server)
            chunk = server.chunk_tokens
            if computed + 1 < state.stored:  # a load failed: what it was for may be gone from the server
                state.stored = computed // chunk * chunk
            if state.tainted_from is not None and computed <= state.tainted_from:  # vLLM computes those tokens itself
                state.tainted_from = None
            # vLLM counts tokens ahead of what it has seen; the ones that it knows are written when the step ends.
            end = self._stored_now(state, computed + count, chunk)
            if state.stored < end:
                start, state.stored = state.stored // chunk * chunk, end
                yield from self._stores_of(state, step.block_table(request_id), start, end, chunk)
            start, end = self._kept_now(state, computed + count, chunk)
            if start < end:
                state.kept = end
                yield from self._stores_of(state, step.block_table(request_id), start, end, chunk, approximate=True)
            yield from self._segment_stores(state, step, computed + count, chunk)

    def _segment_stores(self, state: RequestState, step: StepFacts, written: int, chunk: int) -> Iterable[Transfer]:
        """The documents of a prompt that are there as a whole, each once."""
        end, request_id = min(written, self._stored_at_most(state.facts)), state.facts.request_id
        for segment in self._blends.segments(state)[state.segments_done :]:
            if segment.stop > end:
                return
            state.segments_done += 1
            if not self._is_to_be_stored(state, segment, chunk):
                continue
            (blocks,), size = step.block_table(request_id), self._groups[0].block_tokens
            own = blocks[segment.start // size : -(-segment.stop // size)]
            store = self._ledger.begin(request_id, frozenset(own))
            state.stores.add(store)
            approximate = segment.start > 0
            yield chain(state, segment, chunk, approximate=approximate, number=store, request_id=request_id, blocks=own)

    @staticmethod
    def _is_to_be_stored(state: RequestState, segment: range, chunk: int) -> bool:
        """At the start of the prompt, whole chunks are stored anyway: its end is left. It is exact, or not stored."""
        if segment.start == 0:
            is_exact = state.tainted_from is None or segment.stop <= state.tainted_from
            return is_exact and len(segment) % chunk > 0
        return not is_found(state, segment)

    def _stores_of(
        self,
        state: RequestState,
        table: BlockTable,
        start: int,
        end: int,
        chunk: int,
        *,
        approximate: bool = False,
    ) -> Iterable[Transfer]:
        request_id = state.facts.request_id
        for first, last, ids in block_slices.to_store(table, self._groups, start, end, chunk):
            store = self._ledger.begin(request_id, frozenset(itertools.chain(*ids)))
            state.stores.add(store)
            self._given.store_begins(request_id, store, -(-last // chunk))
            yield self._transfer(state, store, first, last, chunk, ids, approximate=approximate)

    def _stored_now(self, state: RequestState, written: int, chunk: int) -> int:
        """The end of whole chunks among the tokens of which `written` are there; that of the prompt's tail once all of it
        is, and as long as its chunk is not whole."""
        most = self._stored_at_most(state.facts)
        if state.tainted_from is not None:
            return min(written, most, state.tainted_from) // chunk * chunk
        whole = min(written, most) // chunk * chunk
        if not self._tail_blocks:
            return whole
        tail = state.tail_end(min(most, state.facts.prompt_tokens), self._tail_blocks)
        return tail if whole < tail <= written else whole

    def _kept_now(self, state: RequestState, written: int, chunk: int) -> tuple[int, int]:
        """The chunks that are approximate, and not stored. The first chunk of a prompt is never among them: behind a hole, what
        was kept is found as chunks at their own places, one by one; and nothing is cheaper to compute than the first tokens."""
        if not self._blends.keeps or state.tainted_from is None:
            return 0, 0
        first = max(chunk, state.tainted_from // chunk * chunk, state.kept)
        return first, min(written, self._stored_at_most(state.facts)) // chunk * chunk

    def _stored_at_most(self, facts: RequestFacts) -> int:
        known = len(facts.tokens)
        limit = known if self._saves_decode else min(known, facts.prompt_tokens)
        most = facts.configs.get("lmcache.max_offload_tokens") if facts.configs else None
        return min(limit, max(0, most)) if isinstance(most, int) else limit

    @staticmethod
    def _transfer(
        state: RequestState,
        number: int,
        start: int,
        end: int,
        chunk: int,
        ids: block_slices.BlockIds,
        *,
        approximate: bool = False,
    ) -> Transfer:
        """`end`: of the tokens; the transfer's is that of their last chunk."""
        facts, tokens, salt = state.facts, state.encoded_tokens(end), state.facts.cache_salt
        end += -end % chunk
        return Transfer(
            number, facts.request_id, tokens, start, end, chunk, ids, salt, facts.configs, state.variant, approximate
        )

    # After each step

    def on_worker_results(self, report: WorkerReport | None, finished_recving: Iterable[str]) -> None:
        """`finished_recving`: requests whose loads all workers are done with."""
        if report is not None:
            self._blends.note(report)
        for request_id in finished_recving:
            state = self._states.get(request_id)
            self._blends.received(request_id, state)
            if state is not None:
                state.loading = False
                if state.lookup and state.lookup.segments:  # that no worker came for
                    self._lookups.release_all(state.lookup)
            if request_id in self._ending:
                self._ending.discard(request_id)
                self._lookups.end(request_id)
        if report is None:
            return
        self._use_names(report.model_names)
        self._note_layer_loads(report)
        for store, request_id in self._ledger.note(report):
            self._given.store_over(request_id, store)
            if state := self._states.get(request_id):
                state.stores.discard(store)
        for request_id in report.failed_loads:
            if state := self._states.get(request_id):
                state.may_look_up = False  # it would find the same again
                if state.lookup and state.lookup.hit_tokens:  # what the worker did not come for
                    self._lookups.free(state.lookup, 0, state.lookup.hit_tokens)

    def _note_layer_loads(self, report: WorkerReport) -> None:
        for number in report.over.keys() & self._layer_loads.keys():
            request_id, left = self._layer_loads.pop(number)
            if left > report.over[number]:
                self._layer_loads[number] = request_id, left - report.over[number]

    def _use_names(self, reported: frozenset[str]) -> None:
        """Look up under the model name that the workers registered under. Nothing is cached where they differ: a lookup
        has one name."""
        names = self._names | reported
        if names == self._names or len(self._names) > 1:
            return
        self._names = names
        if len(names) > 1:
            called = " and ".join(sorted(names))
            logger.error("nothing is cached: the workers of this engine call its KV cache %s", called)
            return
        (name,) = names
        self._lookups.use_model_name(name)
        logger.info("the KV cache is shared under model_name=%s", name)

    # The end

    def handed_over(self, request_id: str, *, computed: bool) -> int | None:
        """How many tokens of a request that is over another engine finds, when its stores are over; None where it hands
        nothing over. Comes before `on_finished`. `computed`: its prompt was, as a whole."""
        state = self._states.get(request_id)
        if state is None or state.facts.handoff is None or not self._given.knows(request_id):
            return None
        if not computed:
            self._given.cancel(request_id)
            return None
        self._given.finish(request_id, set(state.stores))
        return state.stored

    def blend_answer(self, request_id: str) -> dict[str, Any] | None:
        """What the request is answered of its blend. Comes before `on_finished`."""
        state = self._states.get(request_id)
        return None if state is None else self._blends.answer(state)

    def on_finished(self, request_id: str, table: BlockTable = ()) -> bool:
        """Whether vLLM has to keep the request's blocks because stores read them; workers tell it when they are over. `table`:
        its blocks, if its prompt was computed."""
        self._lookups.not_early(request_id)
        state = self._states.get(request_id)
        if state is None:
            return False
        if self._layer_loads and table and (server := self._server) and self._stores:
            self._store_late(state, table, server)
        del self._states[request_id]
        self._blends.count(state)
        self._blends.cancel(request_id)
        if state.loading:
            self._ending.add(request_id)  # what is held for it is being read
        elif state.known_to_server:
            self._lookups.end(request_id)
        if state.stores:
            self._finishing.append(request_id)
        return bool(state.stores)

    def _store_late(self, state: RequestState, table: BlockTable, server: Server) -> None:
        """The step that loaded for it has computed it, too: vLLM does not end a request whose load failed."""
        state.use_server(server)
        chunk = server.chunk_tokens
        end = self._stored_now(state, state.facts.prompt_tokens, chunk)
        if state.stored < end:
            start, state.stored = state.stored // chunk * chunk, end
            self._late_stores += self._stores_of(state, table, start, end, chunk)

    def reset_cache(self) -> bool:
        """Drop what the server has. Waits for its answer for a few seconds; False if none came, and while workers store
        or load: what they are at would be there again afterwards, or is of before."""
        for state in self._states.values():
            if not state.allocated:
                self._lookups.forget(state)
        loading = {request_id for request_id, state in self._states.items() if state.loading} | self._ending
        loading |= {request_id for request_id, _ in self._layer_loads.values()}
        cleared, busy = self._port.clear(), self._ledger.requests() | loading
        if busy:
            logger.warning(
                "the cache is not empty, stores or loads are under way; reset it again requests=%d", len(busy)
            )
        return cleared and not busy

    def take_counts(self) -> dict[str, float]:
        """What was counted since the last call."""
        losses = self._port.losses
        if losses > self._losses:
            self._counters.add("lost_servers", losses - self._losses)
            self._losses = losses
        return self._counters.take()

    def close(self) -> None:
        """Give back what is held for requests, and disconnect."""
        self._given.cancel_all()
        for request_id, state in self._states.items():
            if state.known_to_server:
                self._lookups.end(request_id)
        self._states.clear()
        self._port.close()

    @property
    def server_name(self) -> str:
        """Of the server that is there; empty: none is, or it has none."""
        server = self._port.server
        return server.instance_id if server else ""

    def _prompt_key(self, state: RequestState) -> EngineKey | None:
        return self._lookups.prompt_key(state, self._server)

    @property
    def _server(self) -> Server | None:
        """The one to work with; None as well for one whose chunks do not end where blocks end."""
        server = self._port.server
        if server is None or server is self._refused or len(self._names) > 1:
            return None
        span = block_span(self._groups)
        if not server.chunk_tokens % span:
            return server
        self._refused = server
        logger.error(
            "nothing is cached: the server's chunks have %d tokens, which is not a multiple of vLLM's blocks of %d; start the "
            "server with another --chunk-size, or vLLM with another --block-size",
            server.chunk_tokens,
            span,
        )
        return None
