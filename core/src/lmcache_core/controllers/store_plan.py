"""Asks the store policy, which is somebody else's code, for a plan that makes sense."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core.contracts.l2_adapter import StoreItem
from lmcache_core.contracts.policies import AdapterFacts, StoredObject, StorePlan, StorePolicy
from lmcache_core.controllers.policies import PolicySeat
from lmcache_core.controllers.store_units import Batch


def plan_stores(
    seat: PolicySeat[StorePolicy], items: Sequence[StoreItem], batch: Batch, adapters: Sequence[AdapterFacts]
) -> StorePlan:
    """The adapters that each object of the batch goes to.  Where the policy raises, or names what is not there, none: the
    objects stay in L1 only.  Where that happens again and again, the built-in policy is asked instead, from these objects
    on."""
    if not items:
        return StorePlan(())
    if not adapters:
        return StorePlan(((),) * len(items))
    objects = [
        StoredObject(item.key.space, item.key.chunk_hash, item.buffer.length, batch.hit, chunk, batch.request)
        for item, chunk in zip(items, batch.chunks, strict=True)
    ]
    known = range(len(adapters))
    try:
        plan = seat.policy.plan(objects, adapters)
        targets = tuple(tuple(chosen) for chosen in plan.targets)
        if len(targets) != len(items):
            raise ValueError(f"the store policy planned {len(targets)} of {len(items)} objects")
        for chosen in set(targets):
            if any(type(index) is not int or index not in known for index in chosen):
                raise ValueError(f"the store policy named other adapters than 0 to {len(known) - 1}")
            if len(set(chosen)) != len(chosen):
                raise ValueError("the store policy named an adapter twice")
        drops = bool(plan.drop_from_l1)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin boundary
        if built_in := seat.failed("plan", error):
            seat.take(built_in, because_it_failed=True)
            return plan_stores(seat, items, batch, adapters)
        return StorePlan(((),) * len(items))
    seat.worked("plan")
    return StorePlan(targets, drops)
