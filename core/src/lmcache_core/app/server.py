"""A running server: its parts, started and stopped in order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from heapq import nlargest
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

import lmcache_core
from lmcache_core.app.l2_tier import ADAPTER_CLOSE_SECONDS, RunningAdapter
from lmcache_core.app.parts import Parts
from lmcache_core.app.plugins.discovery import PluginRow
from lmcache_core.app.plugins.plugin_fault import close_logged, status_of
from lmcache_core.contracts.conditions import ActiveCondition, ServerState, server_state, state_reason
from lmcache_core.contracts.counts import SubscriberStatus, Tenant, TenantCounts
from lmcache_core.contracts.samples import Sample, SampleKind
from lmcache_core.contracts.server_view import ServerInfo
from lmcache_core.controllers.adapter_conditions import adapter_subject
from lmcache_core.controllers.adapter_removal import AdapterStage
from lmcache_core.controllers.conditions import is_well
from lmcache_core.model.names import salt_text
from lmcache_core.model.results import Outcome
from lmcache_core.storage.counters import total

if TYPE_CHECKING:
    from lmcache_core.contracts.server_counts import ServerCounts

logger = logging.getLogger(__name__)

HASTY_CLOSE_SECONDS: Final = 0.5
"""How long an adapter may take to close where `drain_seconds` are over."""
SHOWN_MAX: Final = 100
"""Salts and models that are named, those that asked for most first."""
_OF_TENANTS: Final = (
    *("requested_chunks", "hit_l1_chunks", "hit_l2_chunks", "missed_chunks", "requested_tokens", "hit_l1_tokens"),
    *("hit_l2_tokens", "missed_tokens", "stored_chunks", "stored_bytes", "retrieved_chunks", "retrieved_bytes"),
)
JOIN_SECONDS = 2.0
"""How long a thread may take to end once it was asked to."""


class Server:
    """`start` and `stop` belong to the main thread; the rest, which plugins get as their `ServerView`, to any."""

    def __init__(self, parts: Parts) -> None:
        self._parts = self.parts = parts
        self._started = time.monotonic()
        self._stopped = False

    @property
    def info(self) -> ServerInfo:
        return self._parts.info

    @property
    def sample_kinds(self) -> Sequence[SampleKind]:
        return self._parts.services.sample_kinds()

    def start(self) -> None:
        """Returns when the engine port answers; the admin API comes up after it."""
        parts = self._parts
        parts.common.bus.begin(self)
        for name, run in self._threads():
            parts.supervisor.start(name, run)
        logger.info(
            "engine port is %s chunk_tokens=%d l1_gib=%.2f segment=%s adapters=%s",
            f"open endpoint={parts.info.engine_endpoint}" if parts.info.engine_endpoint else "not open",
            parts.info.chunk_tokens,
            parts.tiers.arena.size_bytes / 2**30,
            parts.tiers.arena.segment or "none",
            ",".join(client.name for client in parts.tiers.l2.clients) or "none",
        )
        parts.common.plugins.started(parts.info)
        parts.services.start(parts.info, parts.supervisor)

    def stop(self, drain_seconds: float) -> bool:
        """Take no more stores, wait for those on their way to L2, stop, and give everything back.  False when
        something did not reach L2.  Calling it again finishes what was interrupted."""
        parts = self._parts
        if self._stopped:
            return True
        deadline = time.monotonic() + drain_seconds
        parts.common.plugins.stopping(parts.info)
        parts.services.stop(drain_seconds)
        parts.adapters.stop()
        parts.settings.stop()
        parts.tiers.storage.take_no_stores()
        drained = parts.tiers.store.drain(drain_seconds)
        if not drained:
            logger.warning("stopped before everything reached L2 backlog=%s", parts.tiers.store.status())
        parts.services.close()
        if not parts.engine_port.stop(JOIN_SECONDS):
            logger.warning("the engine port did not close in time")
        parts.common.conditions.stop()
        parts.tiers.prefetch.stop()
        parts.tiers.store.stop()
        parts.tiers.eviction.stop()
        parts.preallocation.stop()
        for running in parts.tiers.l2.evictions:
            running.eviction.stop()
        for adapter in parts.tiers.l2.adapters:
            if adapter.state is not AdapterStage.LINGERING:  # which was closed, and releases its buffers later
                seconds = max(deadline - time.monotonic(), min(drain_seconds, HASTY_CLOSE_SECONDS))
                adapter.client.close(min(seconds, ADAPTER_CLOSE_SECONDS))
        parts.completions.stop()
        parts.common.bus.close(JOIN_SECONDS)
        left = parts.supervisor.join(JOIN_SECONDS)
        if left:
            logger.warning("threads did not end in time names=%s", ",".join(left))
        if parts.engine_port.router and "router" not in left:
            parts.engine_port.router.close()
        for name, module in parts.engine_port.modules.items():
            close_logged(f"module={name}", module.close)
        parts.tiers.arena.close()
        self._stopped = True
        return drained

    def conditions(self) -> tuple[ActiveCondition, ...]:
        """What is not as it should be now, the severest first."""
        return self._parts.common.conditions.active()

    def counts(self) -> ServerCounts:
        from lmcache_core.app.counts import server_counts  # here: a server without metrics needs none

        return server_counts(self._parts, time.monotonic() - self._started, self.conditions())

    def samples(self) -> Sequence[Sample]:
        return self._parts.services.samples()

    def status(self) -> dict[str, Any]:
        """What an operator wants to see; every figure is of now."""
        parts = self._parts
        conditions = self.conditions()
        state = server_state(conditions)
        counts = parts.tiers.storage.state_counts()
        counters = parts.tiers.storage.counters.snapshot()
        events, port = parts.common.bus.counters(), parts.engine_port
        return {
            "state": state.value,
            "healthy": state is ServerState.HEALTHY,
            "reason": state_reason(conditions),
            "conditions": [each.as_dict() for each in conditions],
            "server": {
                **asdict(parts.info),
                "version": lmcache_core.__version__,
                "native": parts.common.kernels.native,
                "uptime_seconds": round(time.monotonic() - self._started, 1),
            },
            "l1": {
                "kind": parts.tiers.arena.kind,
                "segment": parts.tiers.arena.segment,
                "file": str(parts.tiers.arena.file) if parts.tiers.arena.file else None,
                "direct_io": parts.tiers.arena.region.direct_io,
                **structs.asdict(counts),
                "state_counts_add_up": counts.is_balanced,
                "backed_bytes": parts.tiers.arena.backed_bytes,
                "backing_is_full": parts.preallocation.is_full,
                "evicted": parts.tiers.cache.evicted,
            },
            "pins": parts.tiers.storage.pins.totals()._asdict(),
            "chunks": _chunks(counters),
            "tenants": [{"cache_salt": salt_text(salt), **_tenant_row(row)} for salt, row in _grouped(counters, 1)],
            "models": [{"model_name": model, **_tenant_row(row)} for model, row in _grouped(counters, 0)],
            "lookups_open": parts.tiers.storage.lookups_open,
            "workers": port.workers.status(),
            "policies": parts.settings.policies(),
            "quotas": parts.tiers.quotas.status(),
            "l2": [_adapter(adapter, conditions) for adapter in parts.tiers.l2.adapters],
            "store": parts.tiers.store.status(),
            "prefetch": parts.tiers.prefetch.status(),
            "requests": {
                **structs.asdict(port.requests),
                "unhandled": port.router.unhandled.status() if port.router else {},
                "unsalted_refused": port.gate.refused,
                "waiting_pooled": port.pooled.waiting,
                "waiting_affine": port.affine.waiting,
            },
            "connections": structs.asdict(port.connections),
            "prompts": port.prompts.status(),
            "modules": {name: status_of(f"module={name}", module.status) for name, module in port.modules.items()},
            "services": parts.services.status(),
            "plugins": [_plugin(row) for row in parts.common.plugins.rows()],
            "events": {
                "delivered": events.delivered,
                "waiting": events.waiting,
                "dropped": dict(events.dropped),
                "failed": dict(events.failed),
                "subscribers": {name: _subscriber(status) for name, status in events.subscribers.items()},
            },
            "threads": parts.supervisor.status(),
        }

    def _threads(self) -> list[tuple[str, Callable[[], None]]]:
        parts = self._parts
        return [
            *parts.common.bus.threads(),
            ("conditions", parts.common.conditions.run),
            ("l2-completions", parts.completions.run),
            ("store", parts.tiers.store.run),
            ("prefetch", parts.tiers.prefetch.run),
            ("eviction", parts.tiers.eviction.run),
            ("l1-preallocation", parts.preallocation.run),
            *(thread for eviction in parts.tiers.l2.evictions for thread in eviction.threads()),
            ("reaper", parts.engine_port.reaper.run),
            *parts.engine_port.threads(),
        ]


def _adapter(adapter: RunningAdapter, conditions: Sequence[ActiveCondition]) -> dict[str, Any]:
    status = adapter.client.status()  # usage first: where it is low and nothing is being deleted, what was is counted
    eviction = adapter.eviction.status() if adapter.eviction else None
    loads = adapter.client.counters.snapshot().verbs["load"]
    return {
        "type": adapter.spec.offer.name,
        "index": adapter.client.index,
        "state": adapter.state.value,
        "healthy": is_well(adapter_subject(adapter.name), conditions),
        **status,
        "loaded": loads.outcomes.get(Outcome.DONE.value, 0),
        "loaded_bytes": loads.done_bytes,
        "eviction": eviction,
    }


def _subscriber(status: SubscriberStatus) -> dict[str, Any]:
    seconds = ("cpu_seconds", "slowest_seconds", "oldest_age_seconds")
    return {**structs.asdict(status), **{name: round(getattr(status, name), 3) for name in seconds}}


def _plugin(row: PluginRow) -> dict[str, Any]:
    return {
        "name": row.candidate.name,
        "version": row.candidate.version,
        "status": row.status,
        "setup_ms": None if row.setup_ms is None else round(row.setup_ms, 1),
        "error": row.error,
    }


def _chunks(rows: Mapping[Tenant, TenantCounts]) -> dict[str, Any]:
    """In chunks, over all tenants; lookups in lookups."""
    whole = total(rows)
    return {
        "lookups": whole.lookups,
        "lookups_abandoned": whole.abandoned,
        "requested": whole.requested_chunks,
        "hit": whole.hit_chunks,
        "hit_l1": whole.hit_l1_chunks,
        "loaded_from_l2": whole.hit_l2_chunks,
        "missed": whole.missed_chunks,
        "hit_rate": _rate(whole.hit_chunks, whole.requested_chunks),
        "stored": whole.stored_chunks,
        "retrieved": whole.retrieved_chunks,
        "refused": sum(whole.refused_chunks.values()),
    }


def _grouped(rows: Mapping[Tenant, TenantCounts], field: int) -> list[tuple[str, TenantCounts]]:
    groups: dict[str, TenantCounts] = {}
    for tenant, row in rows.items():
        groups.setdefault(tenant[field], TenantCounts()).add(row)
    return nlargest(SHOWN_MAX, groups.items(), key=lambda item: (item[1].requested_chunks, item[0]))


def _tenant_row(counts: TenantCounts) -> dict[str, Any]:
    return {
        "lookups": counts.lookups,
        "lookups_abandoned": counts.abandoned,
        "early_exits": dict(counts.early_exits),
        **{name: getattr(counts, name) for name in _OF_TENANTS},
        "hit_rate": _rate(counts.hit_tokens, counts.requested_tokens),
        "refused_chunks": dict(counts.refused_chunks),
    }


def _rate(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
