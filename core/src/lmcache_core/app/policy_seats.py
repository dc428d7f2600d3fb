"""The policies of a running server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lmcache_core.contracts.policies import EvictionPolicy, PrefetchPolicy, StorePolicy
from lmcache_core.controllers.policy_seat import PolicySeat

if TYPE_CHECKING:
    from lmcache_core.app.parts import Parts


def policy_seats(parts: Parts) -> Iterator[tuple[PolicySeat[Any], type]]:
    """Each with the kind of policy that it is for; those of L2 adapters, too."""
    yield parts.tiers.eviction.seat, EvictionPolicy
    yield parts.tiers.store.seat, StorePolicy
    yield parts.tiers.prefetch.seat, PrefetchPolicy
    for eviction in parts.tiers.l2.evictions:
        yield eviction.controller.seat, EvictionPolicy
