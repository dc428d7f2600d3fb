"""Where each missing chunk is loaded from: what the policy says, made safe, with the other adapters behind it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from lmcache_core.contracts.policies import PrefetchPlan, PrefetchPolicy
from lmcache_core.controllers.adapter_port import AdapterPort
from lmcache_core.controllers.prefetch_request import Cell, Prefetch, Source
from lmcache_core.model.bitmap import Bitmap
from lmcache_core.model.keys import ObjectKey

logger = logging.getLogger(__name__)


def plan_sources(prefetch: Prefetch, policy: PrefetchPolicy, ports: Sequence[AdapterPort]) -> None:
    """Fill in `sources`, `retain` and what the prefetch aims for, and unpin what it will not ask for.

    A chunk that the policy leaves is left.  For the others, every adapter that has it stands in for the planned one, in
    the order of the cascade, in case that one fails."""
    size = len(prefetch.wanted)
    found = [prefetch.found.get(port, Bitmap(size)) for port in ports]
    plan = _ask(policy, found, ports, size)
    prefetch.retain = plan.retain
    holders = [place for place, port in enumerate(ports) if prefetch.found.get(port)]
    planned: dict[Cell, list[Source]] = {}
    for number, (wanted, first) in enumerate(zip(prefetch.wanted, plan.sources, strict=True)):
        if first is None or not (0 <= first < len(found) and number in found[first]):
            continue
        others = [place for place in holders if place != first and number in found[place]]
        planned.setdefault(wanted.cell, []).extend(Source(wanted.record, ports[place]) for place in (first, *others))
    prefetch.sources = planned
    prefetch.planned = True
    prefetch.aim()
    _keep_pinned(prefetch, ports)


def _ask(policy: PrefetchPolicy, found: Sequence[Bitmap], ports: Sequence[AdapterPort], size: int) -> PrefetchPlan:
    if not ports:  # the last one was removed meanwhile
        return PrefetchPlan((None,) * size)
    try:
        plan = policy.plan(found, [port.facts for port in ports])
        sources, retain = tuple(plan.sources), bool(plan.retain)
        if len(sources) != size:
            raise ValueError(f"the prefetch policy planned {len(sources)} of {size} keys")
        if any(source is not None and type(source) is not int for source in sources):
            raise ValueError("the prefetch policy named an adapter by something else than its index")
    except (Exception, SystemExit):  # a plugin boundary: without a plan nothing is loaded
        logger.exception("prefetch policy failed keys=%d", size)
        return PrefetchPlan((None,) * size)
    return PrefetchPlan(sources, retain)


def _keep_pinned(prefetch: Prefetch, ports: Sequence[AdapterPort]) -> None:
    """A shorter prefix than planned may need other chunks of a window, so all that lies in front stays pinned."""
    last = max((cell.chunk for cell in prefetch.todo), default=-1)
    for port in ports:
        kept, rest = list[ObjectKey](), list[ObjectKey]()
        for number in prefetch.found.get(port, ()):
            wanted = prefetch.wanted[number]
            sources = prefetch.sources.get(wanted.cell, ())
            used = wanted.cell.chunk <= last and any(
                source.port is port and source.record is wanted.record for source in sources
            )
            (kept if used else rest).append(wanted.key)
        prefetch.pinned[port] = kept
        port.unpin(rest)
