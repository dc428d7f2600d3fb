"""All counts of a running server.  Each part is read once, under its own lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lmcache_core.app.l2_tier import RunningAdapter
from lmcache_core.app.parts import Parts
from lmcache_core.contracts.conditions import ActiveCondition
from lmcache_core.contracts.serde import SerdeAdapter
from lmcache_core.contracts.server_counts import AdapterView, L1Counts, L2Counts, PortCounts, ServerCounts
from lmcache_core.controllers.adapter_conditions import adapter_subject
from lmcache_core.controllers.conditions import is_well


def server_counts(parts: Parts, uptime_seconds: float, active: Sequence[ActiveCondition]) -> ServerCounts:
    """Any thread.  `active`: the conditions of now."""
    storage, prompts, threads = parts.tiers.storage, parts.engine_port.prompts, parts.supervisor.threads
    return ServerCounts(
        native=parts.common.kernels.native,
        uptime_seconds=uptime_seconds,
        tenants=storage.counters.snapshot(),
        l1=_l1(parts),
        l2=_l2(parts, active),
        port=_port(parts),
        lookups_open=storage.lookups_open,
        oldest_lookup_seconds=storage.oldest_lookup_seconds,
        prompt_bytes=prompts.size_bytes,
        prompt_tenants=prompts.tenants,
        thread_restarts={name: thread.restarts for name, thread in threads.items()},
        threads_down=sum(thread.down for thread in threads.values()),
        policy_failures={seat.subject.removesuffix(" policy"): seat.failures for seat in parts.guarded_policies()},
        subscribers=parts.common.bus.counters().subscribers,
    )


def _l1(parts: Parts) -> L1Counts:
    cache, arena, eviction = parts.tiers.cache, parts.tiers.arena, parts.tiers.eviction
    dropped, quarantined = parts.tiers.storage.expired
    return L1Counts(
        kind=arena.kind,
        slots=cache.contents.state_counts(),
        backed_bytes=arena.backed_bytes,
        objects=cache.objects,
        leases=cache.leases.count_by_owner(),
        pinned_bytes=parts.tiers.storage.pins.totals().size_bytes,
        slabs=cache.slabs.count_by_size(),
        stores_waiting=cache.stores_waiting,
        store_waits=cache.store_waits,
        evictions=cache.evictions(),
        eviction_rounds=eviction.rounds,
        eviction_rounds_triggered=eviction.rounds_triggered,
        expired_dropped=dropped,
        expired_quarantined=quarantined,
        overwritten=cache.checks.overwritten if cache.checks is not None else None,
        quotas=parts.tiers.quotas.everything(),
    )


def _l2(parts: Parts, active: Sequence[ActiveCondition]) -> L2Counts:
    store = parts.tiers.store
    return L2Counts(
        stores=store.views(),
        backlog_bytes=store.backlog.size_bytes,
        turned_away=store.backlog.refused,
        prefetch=parts.tiers.prefetch.counts(),
        adapters=[_adapter(adapter, active) for adapter in parts.tiers.l2.adapters],
    )


def _adapter(running: RunningAdapter, active: Sequence[ActiveCondition]) -> AdapterView:
    client, serdes = running.client, running.client.adapter
    return AdapterView(
        name=client.name,
        index=client.index,
        answers=client.answers,
        healthy=is_well(adapter_subject(client.name), active),
        counts=client.counters.snapshot(),
        timeouts=client.timeouts,
        faults=client.counters.faults,
        circuit=client.circuit(),
        usage=client.usage(),
        eviction=running.eviction.eviction.counts if running.eviction else None,
        serdes=serdes.serde_counts() if isinstance(serdes, SerdeAdapter) else {},
        serde_refusals=serdes.refusals() if isinstance(serdes, SerdeAdapter) else {},
    )


def _port(parts: Parts) -> PortCounts:
    port = parts.engine_port
    times = port.router.answered() if port.router else {}
    return PortCounts(
        times=times,
        requests=port.requests,  # read after `times`: answered requests never exceed received ones
        waiting={pool.name: pool.waiting for pool in (port.pooled, port.affine)},
        oldest_seconds=port.router.oldest_seconds if port.router else 0.0,
        unsalted=port.gate.refused,
        connections=port.connections,
        workers=Counter((worker.model_name, worker.inline) for worker in port.workers.registered()),
    )
