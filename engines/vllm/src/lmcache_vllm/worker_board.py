"""What is under way in a worker, and what came to an end since vLLM last asked."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable

from lmcache_vllm.metadata import BlendLoad, BlendLoaded, BlendResult, Transfer, TransferResults, WorkerReport
from lmcache_vllm.stats import Counters
from lmcache_vllm.transfer_task import Outcome, TransferTask


class TransferBoard:
    """Written by the transfer threads, read by the model's. Any thread.

    A store is over when its blocks are not read any more, a load when they are not written any more.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._stores: dict[int, TransferTask] = {}
        self._read: dict[int, TransferTask] = {}
        self._over: Counter[int] = Counter()
        self._failed_loads: set[str] = set()
        self._finishing: set[str] = set()
        self._loads: dict[int, TransferTask] = {}
        self._loaded: set[str] = set()
        self._load_failed: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._blend_loaded: dict[int, BlendLoaded] = {}
        self._blend_results: dict[int, BlendResult] = {}
        self._counters = Counters()
        self._reported = False

    # Stores

    def begin_store(self, task: TransferTask) -> None:
        with self._changed:
            self._stores[task.transfer.id] = task

    def store_read(self, transfer: Transfer) -> None:
        """Its blocks may be written; what was read is not on the server yet."""
        with self._changed:
            if (task := self._stores.pop(transfer.id, None)) is not None:
                self._read[transfer.id] = task
                self._changed.notify_all()

    def store_over(self, transfer: Transfer) -> None:
        """It is on the server, or never will be."""
        with self._changed:
            task = self._stores.pop(transfer.id, None) or self._read.pop(transfer.id, None)
            if task is not None:
                self._over[transfer.id] += 1
                self._changed.notify_all()

    def not_stored_here(self, transfers: Iterable[Transfer]) -> None:
        """Another worker stores them."""
        with self._changed:
            self._over.update(transfer.id for transfer in transfers)

    def finish(self, request_ids: Iterable[str]) -> None:
        """Name these requests as sent when their stores are over."""
        with self._changed:
            self._finishing.update(request_ids)

    def stores(self) -> list[TransferTask]:
        """Stores that are not over."""
        with self._changed:
            return list(self._stores.values())

    def wait_for_stores(self, tasks: Iterable[TransferTask], seconds: float) -> list[TransferTask]:
        """Those that are not over after `seconds`."""
        ids = {task.transfer.id for task in tasks}
        deadline = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: ids.isdisjoint(self._stores), max(0.0, deadline - time.monotonic()))
            return [self._stores[number] for number in ids if number in self._stores]

    # Loads

    def begin_load(self, task: TransferTask) -> None:
        with self._changed:
            self._loads[task.transfer.id] = task

    def load_over(self, transfer: Transfer, failed_blocks: set[int], block_ids_say_enough: bool) -> None:
        """`block_ids_say_enough`: they name blocks of one table that is needed from its start. Otherwise the request as a
        whole has failed."""
        with self._changed:
            del self._loads[transfer.id]
            self._changed.notify_all()
            self._over[transfer.id] += 1
            self._loaded.add(transfer.request_id)
            if failed_blocks:
                self._failed_loads.add(transfer.request_id)
            if failed_blocks and block_ids_say_enough:
                self._failed_blocks |= failed_blocks
            elif failed_blocks:
                self._load_failed.add(transfer.request_id)

    def layer_load_over(self, transfer: Transfer, failed_blocks: set[int]) -> None:
        """A load inside of a step has ended."""
        with self._changed:
            self._over[transfer.id] += 1
            if failed_blocks:
                self._failed_loads.add(transfer.request_id)
                self._failed_blocks |= failed_blocks

    def wait_for_a_load(self, seconds: float) -> None:
        """Until a load is over, if there is one."""
        with self._changed:
            before = len(self._loads)
            self._changed.wait_for(lambda: len(self._loads) < before or not before, seconds)

    def loads(self) -> list[TransferTask]:
        """Loads that are not over, those of blends included."""
        with self._changed:
            return list(self._loads.values())

    # Blends

    def blend_loaded(self, order: BlendLoad, loaded: BlendLoaded) -> None:
        """Its blocks are not written any more until its passes begin."""
        with self._changed:
            self._loads.pop(order.id, None)
            self._blend_loaded[order.id] = loaded
            self._changed.notify_all()

    def blend_over(self, order: BlendLoad, result: BlendResult | None, failed_blocks: Iterable[int]) -> None:
        """Nothing writes its blocks any more; `failed_blocks` do not hold what they should. No result: it was called off."""
        with self._changed:
            self._loaded.add(order.request_id)
            self._failed_blocks.update(failed_blocks)
            if result is not None:
                self._blend_results[order.id] = result

    # What is reported to vLLM

    def take_results(self) -> tuple[TransferResults, set[int]]:
        """And the blocks that were not loaded. Everything once."""
        with self._changed:
            busy = {task.transfer.request_id for tasks in (self._stores, self._read) for task in tasks.values()}
            sent = frozenset(self._finishing - busy)
            self._finishing -= sent
            results = TransferResults(sent, frozenset(self._loaded), frozenset(self._load_failed))
            blocks = self._failed_blocks
            self._loaded, self._load_failed, self._failed_blocks = set(), set(), set()
            return results, blocks

    def take_report(self, model_name: str, blend_refused: str = "") -> WorkerReport | None:
        """`model_name`: of this worker. The first report is there at once: the scheduler waits for the name.
        `blend_refused`: why it does not blend, if it was asked to."""
        with self._changed:
            if self._reported and not (self._over or self._blend_loaded or self._blend_results):
                return None
            self._reported = True
            report = WorkerReport(
                dict(self._over),
                frozenset(self._failed_loads),
                frozenset({model_name}),
                self._blend_loaded,
                self._blend_results,
                frozenset(filter(None, [blend_refused])),
            )
            self._over, self._failed_loads = Counter(), set()
            self._blend_loaded, self._blend_results = {}, {}
            return report

    # Counts

    def count(self, kind: str, outcome: Outcome, seconds: float) -> None:
        """`kind`: `store` or `load`."""
        with self._changed:
            if outcome.failure:
                self._counters.add(f"failed_{kind}s", reason=outcome.failure)
            else:
                self._counters.add(f"{kind}s")
                self._counters.add(f"{kind}_bytes", outcome.bytes)
            self._counters.add(f"{kind}_seconds", seconds)

    def count_loss(self) -> None:
        with self._changed:
            self._counters.add("lost_servers", reason="worker")

    def take_counts(self) -> dict[str, float]:
        with self._changed:
            return self._counters.take()
