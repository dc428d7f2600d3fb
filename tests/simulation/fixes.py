"""Fixes that can be taken out, to show that the simulation finds the faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from lmcache_client.codec import Frame
from lmcache_core.contracts.request_module import Worker
from lmcache_core.contracts.storage import SlotReferences
from lmcache_core.server.engine_driven_module import EngineDrivenModule
from lmcache_core.server.engine_socket import Envelope, WaitingAnswers
from lmcache_core.server.open_transfers import OpenReads, Ticket
from lmcache_core.server.registrations import Registrations
from lmcache_vllm.transfer_registration import Registration
from tests.simulation.runtime import the_runtime

CONSTANT_FENCE_SECONDS: Final = 15.0


def _forget_request_ids() -> None:
    """A ticket says nothing of the request."""
    find_range: Any = EngineDrivenModule._range

    def nameless(self: Any, key: Any, instance_id: int) -> Any:
        found = find_range(self, key, instance_id)
        return found and found._replace(ticket=found.ticket._replace(request_id=""))

    EngineDrivenModule._range = nameless  # type: ignore[method-assign]


def without_one_writer() -> None:
    """A range that is prepared again is offered the slots that another request is filling."""
    _forget_request_ids()
    reserve: Any = EngineDrivenModule._reserve

    def offer_again(self: Any, call: Any, chunks: Any) -> Any:
        known = self._stores._stores.get(chunks.worker.instance_id, {}).get(chunks.ticket)
        return (
            known
            if known is not None and self._context.storage.is_live(known.references)
            else reserve(self, call, chunks)
        )

    EngineDrivenModule._reserve = offer_again  # type: ignore[method-assign]


def without_own_reads() -> None:
    """A commit ends the hold of whichever request prepared the range last."""
    _forget_request_ids()

    def commit(self: Any, instance_id: int, ticket: Ticket) -> Sequence[SlotReferences]:
        reads = self._reads.get(instance_id, {}).get(ticket)
        return [reads.held.pop()[1]] if reads is not None and reads.held else []

    OpenReads.commit = commit  # type: ignore[method-assign]


def without_waiting_answers() -> None:
    """An answer that the connection does not take at once is lost."""

    def drop(self: WaitingAnswers, envelope: Envelope, result: Sequence[Frame]) -> None:
        self.dropped += 1

    WaitingAnswers.add = drop  # type: ignore[method-assign]


def without_quarantine() -> None:
    """The slots of a silent worker are given away although it may only be frozen."""

    def end(self: Any, worker: Worker) -> None:
        self._end(worker)

    Registrations._drop_silent = end  # type: ignore[method-assign]


def without_fence() -> None:
    """The fence of our connector's worker is a constant, whatever the server's time-out is."""

    def is_fenced(self: Any) -> bool:
        return bool(the_runtime().now - self._heard > CONSTANT_FENCE_SECONDS)

    Registration.is_fenced = property(is_fenced)  # type: ignore[assignment, method-assign]


def without_announced_fence() -> None:
    """The server gives away what a silent worker reads, although the worker has announced no fence."""
    drop: Any = Registrations._drop_silent

    def drop_silent(self: Any, worker: Worker) -> None:
        worker.fence_seconds = self._reap / 4
        drop(self, worker)

    Registrations._drop_silent = drop_silent  # type: ignore[method-assign]


def without_standstill() -> None:
    """The time in which the server itself was frozen counts as silence of its workers."""
    reap: Any = Registrations.reap

    def count_everything(self: Any) -> None:
        self._reaped_at = self._clock.monotonic()
        reap(self)

    Registrations.reap = count_everything  # type: ignore[method-assign]


FIXES: Final[Mapping[str, Callable[[], None]]] = {
    "announced-fence": without_announced_fence,
    "fence": without_fence,
    "one-writer": without_one_writer,
    "own-reads": without_own_reads,
    "quarantine": without_quarantine,
    "standstill": without_standstill,
    "waiting-answers": without_waiting_answers,
}
