"""The worker side: moves chunks between vLLM's blocks and the server, beside the model."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lmcache_kv_layout import LayoutError
from lmcache_vllm.blend_load import load_blend
from lmcache_vllm.kv_caches import KVCaches, WithOrder
from lmcache_vllm.layerwise import LayerLoad, LayerProgress, LayerTransfers
from lmcache_vllm.metadata import (
    BlendCancel,
    BlendLoad,
    BlendLoaded,
    BlendResult,
    BlendStep,
    StepPlan,
    Transfer,
    TransferResults,
    WorkerReport,
)
from lmcache_vllm.model_identity import EngineIdentity
from lmcache_vllm.placement import CacheGroup, Placement
from lmcache_vllm.settings import Settings
from lmcache_vllm.transfer_copiers import copier_for
from lmcache_vllm.transfer_load import load
from lmcache_vllm.transfer_pages import ChunkPages, Copier, HostCopier, layer_order
from lmcache_vllm.transfer_session import ServerSession
from lmcache_vllm.transfer_store import store
from lmcache_vllm.transfer_task import Outcome, TransferTask
from lmcache_vllm.worker_board import TransferBoard
from lmcache_vllm.worker_threads import TransferThread

if TYPE_CHECKING:  # they need torch
    from lmcache_vllm.blending import Blending

logger = logging.getLogger(__name__)

START_SECONDS: Final = 2.0
"""How long the start of the engine waits for the server. One that comes later is found by the session."""
FENCE_SECONDS: Final = 0.05
"""How long a step waits at least for stores whose blocks it is about to take, as long as nothing is copied. Then they
are called off."""
FENCE_SHARE: Final = 0.1
"""And how long in relation to the step that computed what they store: after a step of many seconds, an answer of the
server may well be waited for, up to `COPY_SECONDS`."""
COPY_SECONDS: Final = 1.0
"""How long it waits for them while they copy: that costs less than to compute what they store once more."""
DRAIN_SECONDS: Final = 2.0
"""How long the end of the engine waits for stores. vLLM kills a worker that takes more than five seconds."""
IDLE_SECONDS: Final = 0.005
"""How long a step that computes nothing waits for a load that is under way. vLLM would take the next step at once, and the
interpreter from the thread that loads."""
NO_RUNNER: Final = (
    "the worker did not give its model to the connector: start vLLM with --worker-cls lmcache_vllm.BlendWorker"
)
JOIN_SECONDS: Final = 0.5
"""And then for an answer of the server to what is under way."""


class _Link(NamedTuple):
    session: ServerSession
    copier: Copier


class _Blend(NamedTuple):
    order: BlendLoad
    task: TransferTask


class WorkerSide:
    """Loads and stores run on two threads of their own while the model computes; the model's thread starts them and asks
    what became of them, and waits for neither the server nor a copy, except where blocks change hands (`on_step`).

    All public methods are called by the model's thread.
    """

    def __init__(
        self,
        settings: Settings,
        placement: Placement,
        groups: Sequence[CacheGroup],
        kv_layout: str | None,
        identity: EngineIdentity | None = None,
        with_order: WithOrder | None = None,
    ) -> None:
        """`identity` names the KV cache when its pages are known; without one it has the name that `placement` says.
        `kv_layout` and `with_order` are as `KVCaches` takes them."""
        self._settings = settings
        self._placement = placement
        self._groups = tuple(groups)
        self._kv_layout = kv_layout
        self._identity = identity
        self._with_order = with_order
        self._board = TransferBoard()
        self._layers = LayerTransfers((), 1)
        self._loading = TransferThread("lmcache-load")
        self._storing = TransferThread("lmcache-store")
        self._link: _Link | None = None
        self._caches: KVCaches | None = None
        self._blending: Blending | None = None
        self._before_layer: Callable[[str], None] | None = None
        self._blends: dict[int, _Blend] = {}
        self._blend_refused = "" if settings.blend == "off" else NO_RUNNER
        self._failed_blocks: set[int] = set()
        self._step_began = time.monotonic()
        self._step_seconds = 0.0
        # vLLM computes from the first block that failed, and takes what is before it for there. With a window it is not.
        self._block_ids_say_enough = len(self._groups) == 1 and self._groups[0].window_tokens < 0

    def register_kv_caches(self, tensors: Mapping[str, Any]) -> None:
        """Pages that are not understood, and a server that is not there or refuses, leave the worker without a cache."""
        try:
            caches = KVCaches(tensors, self._groups, self._kv_layout, self._with_order)
            copier = copier_for(caches)
        except LayoutError as error:
            logger.error("this model's KV cache is not cached: %s", error)
            return
        if self._identity is not None:
            self._placement = replace(self._placement, model_name=self._identity.model_name(caches.facts))
        session = ServerSession(
            self._settings.url,
            self._placement,
            lambda chunk_tokens: ChunkPages(caches, chunk_tokens, copier),
            timeout_seconds=self._settings.timeout_seconds,
            heartbeat_seconds=self._settings.heartbeat_seconds,
            on_lost=self._board.count_loss,
            in_process=self._settings.in_process,
        )
        self._link = _Link(session, copier)
        self._caches = caches
        names = layer_order(caches)
        self._layers = LayerTransfers(names, len(names) if isinstance(copier, HostCopier) else 1)
        session.start(0.0 if self._settings.in_process else START_SECONDS)  # that cache is opened after this

    def bind_model_runner(self, runner: Any) -> None:
        """vLLM's, whose model blends run. All ranks call it at once, and before the first step; the model is tried."""
        if self._settings.blend == "off":
            return
        try:
            from lmcache_vllm.blend_gate import open_blending  # needs vLLM, torch, and the extra `blend`
        except ImportError as error:
            self._refuse_blends(f"{error}; install lmcache-vllm[blend]")
            return
        opened = open_blending(runner, self._caches, self._settings, self._watch_layers)
        if isinstance(opened, str):
            self._refuse_blends(opened)
        else:
            self._blending, self._blend_refused = opened, ""

    def _watch_layers(self, before_layer: Callable[[str], None]) -> None:
        self._before_layer = before_layer

    def _refuse_blends(self, reason: str) -> None:
        logger.error("blending is off: %s", reason)
        self._blend_refused, self._before_layer = reason, None

    # Each step, in this order

    def on_step(self, plan: StepPlan) -> None:
        """Before anything of the step is computed: stores whose blocks have others now stop reading."""
        late = [task for task in self._board.stores() if task.transfer.id in plan.fence] if plan.fence else []
        for task in self._still_reading(late):
            task.cancel()
        for cancel in plan.blend_cancels:
            self._cancel_blend(cancel)
        self._step_began = time.monotonic()

    def start_loads(self, plan: StepPlan) -> None:
        after = self._mark() if plan.loads else None
        for transfer in plan.loads:
            task = TransferTask(transfer, after)
            self._board.begin_load(task)
            if not self._usable or not self._loading.submit(self._load_of(task)):
                self._load_ended(task, Outcome(failure="no_server", failed_chunks=range(task.chunks)), 0.0)
        self._start_layers(plan)
        for order in plan.blend_loads:
            self._begin_blend(order)
        if plan.blends:
            self._go_on_blending(plan.blends)
        elif plan.idle:
            self._board.wait_for_a_load(IDLE_SECONDS)

    def before_layer(self, name: str) -> None:
        """K and V of this layer are written, its attention is next. Raises an exception of blend_pass.py where a pass ends."""
        self._layers.before(name)
        if self._before_layer is not None:
            self._before_layer(name)

    def after_layer(self, name: str) -> None:
        """The attention of this layer is over."""
        self._layers.after(name, self._mark)

    def _start_layers(self, plan: StepPlan) -> None:
        for transfer in plan.layer_loads:
            layered = LayerLoad(TransferTask(transfer, self._mark()), self._settings.timeout_seconds)
            self._layers.loads.append(layered)
            if not self._usable or not self._loading.submit(self._layer_load_of(layered)):
                layered.progress.end()
        if not self._placement.writes:
            self._board.not_stored_here(plan.layer_stores)
            return
        for transfer in plan.layer_stores:
            task, progress = TransferTask(transfer), LayerProgress()
            self._board.begin_store(task)
            self._layers.stores.append((task, progress))
            if not self._usable or not self._storing.submit(self._store_of(task, progress)):
                self._store_ended(task, Outcome(failure="no_server" if not self._usable else "behind"), 0.0)

    def _end_layers(self) -> None:
        loads = self._layers.end_loads()
        for ended, outcome in loads:
            transfer = ended.task.transfer
            self._board.count("load", outcome, ended.task.seconds)
            self._board.layer_load_over(
                transfer, _blocks_of(transfer, range(transfer.chunks)) if outcome.failure else set()
            )
        stores = self._layers.written(self._mark, right=not any(outcome.failure for _, outcome in loads))
        for task in self._board.wait_for_stores(stores, COPY_SECONDS):
            task.cancel()

    def start_stores(self, plan: StepPlan) -> None:
        """After the forward pass: the blocks of these stores hold what is to be stored."""
        self._end_layers()
        self._step_seconds = time.monotonic() - self._step_began
        self._board.finish(plan.finishing)
        if not self._placement.writes:
            self._board.not_stored_here(plan.stores)
            return
        after = self._mark() if plan.stores else None
        for transfer in plan.stores:
            task = TransferTask(transfer, after)
            self._board.begin_store(task)
            if not self._usable or not self._storing.submit(self._store_of(task)):
                self._store_ended(task, Outcome(failure="no_server" if not self._usable else "behind"), 0.0)

    def results(self) -> TransferResults:
        """What ended since the last call; `failed_blocks` belongs to it."""
        results, failed_blocks = self._board.take_results()
        self._failed_blocks |= failed_blocks
        return results

    def failed_blocks(self) -> set[int]:
        """Blocks of loads among the latest results that do not have the right bytes."""
        blocks, self._failed_blocks = self._failed_blocks, set()
        return blocks

    def report(self) -> WorkerReport | None:
        return self._board.take_report(self._placement.model_name, self._blend_refused)

    def take_counts(self) -> dict[str, float]:
        return self._board.take_counts()

    def close(self) -> None:
        """Stores get a few seconds to end. When this returns nothing touches vLLM's memory any more, and the server
        was notified."""
        self._storing.stop()
        self._loading.stop()
        self._layers.abandon()
        if self._usable:
            self._board.wait_for_stores(self._board.stores(), DRAIN_SECONDS)
        for task in [*self._board.stores(), *self._board.loads()]:
            task.cancel()
        self._storing.join(JOIN_SECONDS)
        self._loading.join(JOIN_SECONDS)
        if self._link is not None:
            self._link.session.stop()  # ends what still waits for an answer
        self._storing.join()
        self._loading.join()

    def _still_reading(self, late: list[TransferTask]) -> list[TransferTask]:
        """Waits for these stores as long as it is worth it. Returns those that are not over then."""
        patience = max(FENCE_SECONDS, min(FENCE_SHARE * self._step_seconds, COPY_SECONDS))
        deadline = time.monotonic() + COPY_SECONDS
        while late:
            left = self._board.wait_for_stores(late, min(patience, deadline - time.monotonic()))
            goes_on = len(left) < len(late) or any(task.copies for task in left)
            late = left
            if not goes_on or time.monotonic() >= deadline:
                break
        return late

    # Blends

    def _begin_blend(self, order: BlendLoad) -> None:
        task = TransferTask(order.prefix, self._mark())
        self._blends[order.id] = _Blend(order, task)
        self._board.begin_load(task)
        if self._blending is None or not self._usable or not self._loading.submit(self._blend_load_of(order, task)):
            self._board.blend_loaded(order, BlendLoaded(1, False, (False,) * len(order.segments)))

    def _go_on_blending(self, steps: Sequence[BlendStep]) -> None:
        """What a step names after its end is left out."""
        if self._blending is None:
            return
        named = [(self._blends[step.id].order, step) for step in steps if step.id in self._blends]
        results = self._blending.step(named)
        for order, step in named:
            if (result := results.get(step.id)) is not None:
                self._end_blend(order, result, step.start if result.failed else order.end)

    def _cancel_blend(self, cancel: BlendCancel) -> None:
        if (blend := self._blends.get(cancel.id)) is not None:
            blend.task.cancel()
            if self._blending is not None:
                self._blending.forget(cancel.id)
            self._end_blend(blend.order, None, cancel.start)

    def _end_blend(self, order: BlendLoad, result: BlendResult | None, failed_from: int) -> None:
        """Tokens from `failed_from` on do not have the right KV."""
        del self._blends[order.id]
        failed = range(failed_from, order.end)
        first = failed_from // self._groups[0].block_tokens
        self._board.blend_over(order, result, order.block_ids[first:] if failed else ())

    def _mark(self) -> Callable[[], None] | None:
        return self._link.copier.mark() if self._link is not None else None

    # Beside the model

    @property
    def _usable(self) -> bool:
        return self._link is not None and self._link.session.healthy

    def _load_of(self, task: TransferTask) -> Callable[[], None]:
        def run() -> None:
            session = self._session
            started = time.monotonic()
            try:
                outcome = self._too_late(task) or load(task, session, self._placement)
            except Exception:  # the request waits for its load: it must get an answer, and the thread must live
                logger.exception("a load failed request=%s", task.transfer.request_id)
                outcome = Outcome(failure="error", failed_chunks=range(task.chunks))
            self._load_ended(task, outcome, time.monotonic() - started)

        return run

    def _layer_load_of(self, layered: LayerLoad) -> Callable[[], None]:
        task, progress = layered.task, layered.progress
        return lambda: layered.run(lambda: load(task, self._session, self._placement, progress))

    def _blend_load_of(self, order: BlendLoad, task: TransferTask) -> Callable[[], None]:
        def run() -> None:
            blending, started = self._blending, time.monotonic()
            assert blending is not None
            loaded, outcome = BlendLoaded(1, False, (False,) * len(order.segments)), self._too_late(task)
            if outcome is None:
                try:
                    loaded, outcome = load_blend(task, order, self._session, self._placement, blending.pages)
                except Exception:  # the request waits for its load: it must get an answer, and the thread must live
                    logger.exception("the load of a blend failed request=%s", order.request_id)
                    outcome = Outcome(failure="error")
            self._board.count("load", outcome, time.monotonic() - started)
            self._board.blend_loaded(order, loaded)

        return run

    def _store_of(self, task: TransferTask, progress: LayerProgress | None = None) -> Callable[[], None]:
        def run() -> None:
            session = self._session
            started = time.monotonic()
            try:
                outcome = self._too_late(task) or store(
                    task,
                    session,
                    self._placement,
                    lambda: self._board.store_read(task.transfer),
                    self._blending.pages if self._blending is not None else None,
                    progress,
                )
            except Exception:  # its blocks wait for it: they must be given back, and the thread must live
                logger.exception("a store failed request=%s", task.transfer.request_id)
                outcome = Outcome(failure="error")
            self._store_ended(task, outcome, time.monotonic() - started)

        return run

    def _too_late(self, task: TransferTask) -> Outcome | None:
        """Blocks are kept and requests wait for transfers: however slow those before were, not much longer than for one."""
        if task.seconds <= self._settings.timeout_seconds:
            return None
        return Outcome(failure="behind", failed_chunks=range(task.chunks))

    def _load_ended(self, task: TransferTask, outcome: Outcome, seconds: float) -> None:
        transfer = task.transfer
        self._board.count("load", outcome, seconds)
        blocks = _blocks_of(transfer, outcome.failed_chunks) if outcome.failure else set()
        self._board.load_over(transfer, blocks, self._block_ids_say_enough)

    def _store_ended(self, task: TransferTask, outcome: Outcome, seconds: float) -> None:
        self._board.count("store", outcome, seconds)
        self._board.store_over(task.transfer)

    @property
    def _session(self) -> ServerSession:
        assert self._link is not None, "a transfer before there was a KV cache"
        return self._link.session


def _blocks_of(transfer: Transfer, failed: range) -> set[int]:
    """Ids of the blocks of these chunks, the null block left out. Of a table that does not fit, all of them."""
    found: set[int] = set()
    for table in transfer.block_ids:
        per_chunk, rest = divmod(len(table), transfer.chunks)
        found.update(table if rest else table[failed.start * per_chunk : failed.stop * per_chunk])
    return found - {0}
