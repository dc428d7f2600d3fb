"""Transfers inside of a step: each layer is loaded before its attention, and copied when that is over.

A load that fails is reported with the step that has waited for it: vLLM takes what the step computed for these requests back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from lmcache_vllm.transfer_task import Outcome, TransferTask

logger = logging.getLogger(__name__)

GRACE_SECONDS: Final = 1.0
"""Beyond the longest wait for an answer, after which a load gives up by itself."""


class LayerProgress:
    """How many layers of a transfer are done. Any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._done = 0
        self._after: Callable[[], None] | None = None
        self._over = False

    def reach(self, layers: int, after: Callable[[], None] | None = None) -> None:
        """The first `layers` are done, for the device when `after` returns."""
        with self._changed:
            if layers > self._done:
                self._done, self._after = layers, after
                self._changed.notify_all()

    def end(self) -> None:
        """No further layer comes: waiters return."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def wait(self, layers: int, seconds: float | None = None) -> bool:
        """Whether the first `layers` are done, in time and before the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._done >= layers, seconds)
            is_done, after = self._done >= layers, self._after
        if is_done and after is not None:
            after()
        return is_done

    def wait_over(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._over, seconds)


class LayerLoad:
    """One load, on its way while the model computes the layers before."""

    def __init__(self, task: TransferTask, seconds: float) -> None:
        """`seconds`: the longest wait for an answer to it."""
        self.task = task
        self.progress = LayerProgress()
        self.outcome = Outcome(failure="no_server")
        self._patience = seconds + GRACE_SECONDS
        self._waited = 0
        self._late = False

    def run(self, load: Callable[[], Outcome]) -> None:
        """On the thread that loads."""
        try:
            self.outcome = load()
        except Exception:  # the step waits for it, and the thread must live
            logger.exception("a load failed request=%s", self.task.transfer.request_id)
            self.outcome = Outcome(failure="error")
        finally:
            self.progress.end()

    def wait(self, layers: int) -> None:
        """Returns when the first `layers` are loaded, or the load has failed or takes too long."""
        self._late = self._late or not (self.progress.wait(layers, self._patience) or self.progress.wait_over(0.0))
        self._waited = max(self._waited, layers)

    def end(self, layers: int) -> Outcome:
        """The step is over, and nothing writes its blocks any more. `layers`: all that it had to wait for."""
        if self._late or not self.progress.wait_over(self._patience):
            self.task.cancel()
            return Outcome(failure="no_answer")
        if not self.outcome.failure and self._waited < layers:
            return Outcome(failure="not_waited")  # the model computed before it was there
        return self.outcome


class LayerTransfers:
    """Those of the step that runs. The model's thread calls everything."""

    def __init__(self, names: Sequence[str], layers: int) -> None:
        """`names`: of all layers, in their order. `layers`: in how many parts they are copied: 1, or one for each of them."""
        self._numbers = {name: number for number, name in enumerate(names)}
        self._layers = layers
        self.loads: list[LayerLoad] = []
        self.stores: list[tuple[TransferTask, LayerProgress]] = []

    def before(self, name: str) -> None:
        """The attention of this layer is next: waits until the step's loads have its KV."""
        if self.loads and (number := self._numbers.get(name)) is not None:
            for load in self.loads:
                load.wait(min(number + 1, self._layers))

    def after(self, name: str, mark: Callable[[], Callable[[], None] | None]) -> None:
        """The attention of this layer is over. `mark`: as of a copier."""
        if not self.stores or (number := self._numbers.get(name)) is None:
            return
        done = min(number + 1, self._layers - 1)  # the last one when it is known that nothing has failed
        if done:
            after = mark()
            for _, progress in self.stores:
                progress.reach(done, after)

    def end_loads(self) -> list[tuple[LayerLoad, Outcome]]:
        """End all loads of the step, and return them with their outcomes."""
        loads, self.loads = self.loads, []
        return [(load, load.end(self._layers)) for load in loads]

    def abandon(self) -> None:
        """Cancel the stores of a step that did not end."""
        for _, progress in self.stores:
            progress.end()

    def written(self, mark: Callable[[], Callable[[], None] | None], *, right: bool) -> list[TransferTask]:
        """The model has written all layers. Not `right`: a load of this step failed, and nothing is stored. Returns the stores,
        which may still read their blocks."""
        stores, self.stores = self.stores, []
        if not right:
            for task, progress in stores:
                progress.end()
                task.cancel()
        elif stores:
            after = mark()
            for _, progress in stores:
                progress.reach(self._layers, after)
        return [task for task, _ in stores]
