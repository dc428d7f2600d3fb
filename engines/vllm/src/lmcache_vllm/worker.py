"""The worker side: moves chunks between vLLM's blocks and the server, beside the model."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from lmcache_kv_layout import LayoutError
from lmcache_vllm.kv_caches import KVCaches, WithOrder
from lmcache_vllm.metadata import StepPlan, Transfer, TransferResults, WorkerReport
from lmcache_vllm.model_identity import EngineIdentity
from lmcache_vllm.placement import CacheGroup, Placement
from lmcache_vllm.settings import Settings
from lmcache_vllm.transfer_copiers import copier_for
from lmcache_vllm.transfer_load import load
from lmcache_vllm.transfer_pages import ChunkPages, Copier
from lmcache_vllm.transfer_session import ServerSession
from lmcache_vllm.transfer_store import store
from lmcache_vllm.transfer_task import Outcome, TransferTask
from lmcache_vllm.worker_board import TransferBoard
from lmcache_vllm.worker_threads import TransferThread

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
JOIN_SECONDS: Final = 0.5
"""And then for an answer of the server to what is under way."""


class _Link(NamedTuple):
    session: ServerSession
    copier: Copier


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
        self._loading = TransferThread("lmcache-load")
        self._storing = TransferThread("lmcache-store")
        self._link: _Link | None = None
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
        )
        self._link = _Link(session, copier)
        session.start(START_SECONDS)

    # Each step, in this order

    def on_step(self, plan: StepPlan) -> None:
        """Before anything of the step is computed: stores whose blocks have others now stop reading."""
        late = [task for task in self._board.stores() if task.transfer.id in plan.fence] if plan.fence else []
        for task in self._still_reading(late):
            task.cancel()
        self._step_began = time.monotonic()

    def start_loads(self, plan: StepPlan) -> None:
        after = self._mark() if plan.loads else None
        for transfer in plan.loads:
            task = TransferTask(transfer, after)
            self._board.begin_load(task)
            if not self._usable or not self._loading.submit(self._load_of(task)):
                self._load_ended(task, Outcome(failure="no_server", failed_chunks=range(task.chunks)), 0.0)

    def start_stores(self, plan: StepPlan) -> None:
        """After the forward pass: the blocks of these stores hold what is to be stored."""
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
        return self._board.take_report(self._placement.model_name)

    def take_counts(self) -> dict[str, float]:
        return self._board.take_counts()

    def close(self) -> None:
        """Stores get a few seconds to end. When this returns nothing touches vLLM's memory any more, and the server
        was notified."""
        self._storing.stop()
        self._loading.stop()
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

    def _store_of(self, task: TransferTask) -> Callable[[], None]:
        def run() -> None:
            session = self._session
            started = time.monotonic()
            try:
                outcome = self._too_late(task) or store(
                    task, session, self._placement, lambda: self._board.store_read(task.transfer)
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
