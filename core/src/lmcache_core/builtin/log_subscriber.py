"""Events as log lines: what an operator should see always, and what happened to L2 where debug lines are on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec import structs

from lmcache_core.builtin.sum_log import PERIOD_SECONDS, Kind, SumLog
from lmcache_core.contracts.events import (
    AdapterAdded,
    AdapterRemoved,
    CacheCleared,
    Event,
    LeasesExpired,
    ObjectRejected,
    ObjectsEvicted,
    PrefetchSubmitted,
    QuotaChanged,
    SettingChanged,
    StoreCompleted,
    StoreRefused,
    StoresDropped,
    StoreSubmitted,
    WorkerLeft,
    WorkerRegistered,
)
from lmcache_core.contracts.subscriber import Subscriber, Subscriptions
from lmcache_core.model.names import parse_model_name

logger = logging.getLogger(__name__)

_INFO: Final[Mapping[type[Event], str]] = {
    CacheCleared: "L1 was emptied on request chunks=%(chunks)d force=%(force)s",
    AdapterAdded: "adapter added adapter=%(adapter)s type=%(type)s",
    SettingChanged: "setting changed name=%(name)s before=%(before)r after=%(after)r",
}
_DEBUG: Final[Mapping[type[Event], str]] = {
    StoreSubmitted: "Submitted store task %(job)d adapter=%(adapter)s objects=%(objects)d bytes=%(object_bytes)d",
    StoreCompleted: "L2 store task %(job)d completed adapter=%(adapter)s stored=%(stored)d failed=%(failed)d "
    "seconds=%(seconds).3f",
    ObjectsEvicted: "L2 objects evicted adapter=%(adapter)s objects=%(objects)d bytes=%(object_bytes)d "
    "used_ratio=%(used_ratio).2f",
    PrefetchSubmitted: "Prefetch request submitted: %(total_keys)d total keys, %(l1_prefix_hits)d L1 prefix hits, "
    "%(remaining_keys)d remaining for L2",
}
"""Lines that are the fields of an event."""


class LogSubscriber(Subscriber):
    """Debug events are subscribed to only where their lines would be written, so that they cost nothing elsewhere."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._drops = SumLog(_stores_dropped, now)
        self._refusals = SumLog(_stores_refused, now)
        self._rejects = SumLog(self._write_rejects, now, wait_seconds=PERIOD_SECONDS)
        self._newest_reject: dict[Kind, ObjectRejected] = {}

    def batch_done(self) -> None:
        for each in (self._drops, self._refusals, self._rejects):
            each.write_due()

    def close(self) -> None:
        for each in (self._drops, self._refusals, self._rejects):
            each.flush()

    def subscriptions(self) -> Subscriptions:
        calls: dict[type[Event], Callable[[Any], None]] = {
            WorkerRegistered: _worker_registered,
            WorkerLeft: _worker_left,
            ObjectRejected: self._object_rejected,
            StoresDropped: self._store_dropped,
            StoreRefused: self._store_refused,
            LeasesExpired: _leases_expired,
            QuotaChanged: _quota_changed,
            AdapterRemoved: _adapter_removed,
        }
        for level, lines in ((logging.INFO, _INFO), (logging.DEBUG, _DEBUG)):
            if level == logging.INFO or logger.isEnabledFor(level):
                calls |= {kind: partial(_write, level, text) for kind, text in lines.items()}
        return calls

    def _store_dropped(self, event: StoresDropped) -> None:
        self._drops.note((event.adapter, event.reason), event.objects, event.object_bytes)

    def _store_refused(self, event: StoreRefused) -> None:
        self._refusals.note((event.reason, event.cache_salt), event.chunks)

    def _object_rejected(self, event: ObjectRejected) -> None:
        kind = (event.adapter, event.outcome)
        self._newest_reject[kind] = event
        self._rejects.note(kind, 1)

    def _write_rejects(self, kind: Kind, amounts: Sequence[int]) -> None:
        newest = self._newest_reject.pop(kind)  # reasons and ids differ from object to object, so one is shown for all
        logger.warning(
            "objects rejected, not served adapter=%s outcome=%s objects=%d newest=%s reason=%s",
            newest.adapter, newest.outcome, amounts[0], newest.object_id, newest.reason,
        )  # fmt: skip


def _write(level: int, text: str, event: Event) -> None:
    logger.log(level, text, structs.asdict(event))


def _worker_registered(event: WorkerRegistered) -> None:
    logger.info(
        "worker registered instance=%d %s world_size=%d layout=%s shared_memory=%s",
        event.instance_id, _model(event.model_name), event.world_size, event.layout, event.shared_memory,
    )  # fmt: skip


def _worker_left(event: WorkerLeft) -> None:
    logger.info("worker left instance=%d %s reason=%s", event.instance_id, _model(event.model_name), event.reason)


def _model(name: str) -> str:
    model = parse_model_name(name)
    return f"model={model.served} identity={model.identity or '-'}"


def _leases_expired(event: LeasesExpired) -> None:
    level = logging.WARNING if event.quarantined_slots else logging.DEBUG
    text = "holds passed their deadline dropped_slots=%d quarantined_slots=%d"
    logger.log(level, text, event.dropped_slots, event.quarantined_slots)


def _quota_changed(event: QuotaChanged) -> None:
    limit = "none" if event.limit_bytes is None else event.limit_bytes
    # %r: an operator's client chose the name, and it must not write lines of its own
    logger.info("quota changed cache_salt=%r limit_bytes=%s", event.cache_salt, limit)


def _stores_dropped(kind: Kind, amounts: Sequence[int]) -> None:
    (adapter, reason), (objects, object_bytes) = kind, amounts
    text = "objects will not reach L2 adapter=%s objects=%d bytes=%d reason=%s"
    logger.warning(text, adapter or "any", objects, object_bytes, reason)


def _stores_refused(kind: Kind, amounts: Sequence[int]) -> None:
    (reason, cache_salt), (chunks,) = kind, amounts
    # a quota and a freeze do what an operator wants of them
    level = logging.INFO if reason in ("quota", "stopping", "frozen") else logging.WARNING
    logger.log(level, "L1 had no room for chunks reason=%s cache_salt=%r chunks=%d", reason, cache_salt, chunks)


def _adapter_removed(event: AdapterRemoved) -> None:
    level = logging.INFO if event.drained else logging.WARNING
    logger.log(level, "adapter removed adapter=%s drained=%s", event.adapter, event.drained)


def open_log_subscriber(settings: None) -> Subscriber:
    return LogSubscriber()
