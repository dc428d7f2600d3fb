"""What `/status` says of lookups, stores and retrieves: in total and by tenant."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest
from typing import Any, Final

from lmcache_core.model.names import salt_text
from lmcache_core.storage.counters import Tenant, TenantCounts, total

SHOWN_MAX: Final = 100
"""Salts and models that are named, those that asked for most first."""


def chunk_status(rows: Mapping[Tenant, TenantCounts]) -> dict[str, Any]:
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


def tenants_status(rows: Mapping[Tenant, TenantCounts]) -> list[dict[str, Any]]:
    """By cache salt."""
    return [{"cache_salt": salt_text(salt), **_row(counts)} for salt, counts in _grouped(rows, 1)]


def models_status(rows: Mapping[Tenant, TenantCounts]) -> list[dict[str, Any]]:
    """By model."""
    return [{"model_name": model, **_row(counts)} for model, counts in _grouped(rows, 0)]


def _grouped(rows: Mapping[Tenant, TenantCounts], field: int) -> list[tuple[str, TenantCounts]]:
    groups: dict[str, TenantCounts] = {}
    for tenant, row in rows.items():
        groups.setdefault(tenant[field], TenantCounts()).add(row)
    return nlargest(SHOWN_MAX, groups.items(), key=lambda item: (item[1].requested_chunks, item[0]))


def _row(counts: TenantCounts) -> dict[str, Any]:
    return {
        "lookups": counts.lookups,
        "lookups_abandoned": counts.abandoned,
        "early_exits": dict(counts.early_exits),
        "requested_chunks": counts.requested_chunks,
        "hit_l1_chunks": counts.hit_l1_chunks,
        "hit_l2_chunks": counts.hit_l2_chunks,
        "missed_chunks": counts.missed_chunks,
        "requested_tokens": counts.requested_tokens,
        "hit_l1_tokens": counts.hit_l1_tokens,
        "hit_l2_tokens": counts.hit_l2_tokens,
        "missed_tokens": counts.missed_tokens,
        "hit_rate": _rate(counts.hit_tokens, counts.requested_tokens),
        "stored_chunks": counts.stored_chunks,
        "stored_bytes": counts.stored_bytes,
        "retrieved_chunks": counts.retrieved_chunks,
        "retrieved_bytes": counts.retrieved_bytes,
        "refused_chunks": dict(counts.refused_chunks),
    }


def _rate(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
