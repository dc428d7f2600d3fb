"""Fixes that can be taken out, to show that the simulation finds what they mended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from lmcache_core.contracts.request_module import Worker
from lmcache_core.contracts.storage import Hold
from lmcache_core.server.modules.engine_driven import EngineDrivenModule
from lmcache_core.server.open_transfers import OpenReads, Ticket
from lmcache_core.server.registrations import Registrations
from lmcache_core.server.waiting_answers import Envelope, WaitingAnswers
from lmcache_core.wire.codec import Frame


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
        return known if known is not None and self._context.storage.is_live(known.hold) else reserve(self, call, chunks)

    EngineDrivenModule._reserve = offer_again  # type: ignore[method-assign]


def without_own_reads() -> None:
    """A commit ends the hold of whichever request prepared the range last."""
    _forget_request_ids()

    def commit(self: Any, instance_id: int, ticket: Ticket) -> Sequence[Hold]:
        reads = self._reads.get(instance_id, {}).get(ticket)
        return [reads.holds.pop()[1]] if reads is not None and reads.holds else []

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


FIXES: Final[Mapping[str, Callable[[], None]]] = {
    "one-writer": without_one_writer,
    "own-reads": without_own_reads,
    "quarantine": without_quarantine,
    "waiting-answers": without_waiting_answers,
}
