"""Where each missing chunk is loaded from: what the policy says, made safe, with the other adapters behind it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from lmcache_core.contracts.events import LoadsDeclined, Publisher
from lmcache_core.contracts.policies import PrefetchFacts, PrefetchPlan, PrefetchPolicy, WantedObject
from lmcache_core.controllers.adapter_port import AdapterPort
from lmcache_core.controllers.policy_seat import PolicySeat
from lmcache_core.controllers.prefetch_request import Cell, Prefetch, Source
from lmcache_core.controllers.prefetch_slices import IN_FLIGHT_CELLS
from lmcache_core.model.bitmap import Bitmap
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES


def plan_sources(
    prefetch: Prefetch,
    seat: PolicySeat[PrefetchPolicy],
    ports: Sequence[AdapterPort],
    loading_bytes: Callable[[AdapterPort], int],
    events: Publisher,
) -> None:
    """Fill in `sources`, `retain` and what the prefetch aims for, and unpin what it will not ask for.

    A chunk that the policy leaves is left.  For the others, every adapter that has it stands in for the planned one, in
    the order of the cascade, in case that one fails."""
    size = len(prefetch.wanted)
    found = [prefetch.found.get(port, Bitmap(size)) for port in ports]
    plan = _ask(seat, found, ports, prefetch, loading_bytes)
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
    _count_declined(prefetch, plan, found, ports, events)


def _count_declined(
    prefetch: Prefetch, plan: PrefetchPlan, found: Sequence[Bitmap], ports: Sequence[AdapterPort], events: Publisher
) -> None:
    left: dict[int, list[int]] = defaultdict(list)
    for number, (wanted, place) in enumerate(zip(prefetch.wanted, plan.declined, strict=False)):
        if place is not None and 0 <= place < len(ports) and number in found[place]:
            left[place].append(HEADER_BYTES + wanted.record.payload_bytes)
    for place, sizes in left.items():
        ports[place].tally.declined(len(sizes), sum(sizes))
        events.publish(LoadsDeclined(ports[place].name, prefetch.request_id, len(sizes), sum(sizes)))


def _facts(
    prefetch: Prefetch, ports: Sequence[AdapterPort], loading_bytes: Callable[[AdapterPort], int]
) -> PrefetchFacts:
    wanted = [
        WantedObject(prefetch.first_chunk + each.cell.chunk, each.cell.row, HEADER_BYTES + each.record.payload_bytes)
        for each in prefetch.wanted
    ]
    return PrefetchFacts(
        wanted,
        [row.window for row in prefetch.rows],
        prefetch.wanted[0].record.space.chunk_tokens,
        prefetch.sparse,
        prefetch.keeps,
        [loading_bytes(port) for port in ports],
        IN_FLIGHT_CELLS,
    )


def _ask(
    seat: PolicySeat[PrefetchPolicy],
    found: Sequence[Bitmap],
    ports: Sequence[AdapterPort],
    prefetch: Prefetch,
    loading_bytes: Callable[[AdapterPort], int],
) -> PrefetchPlan:
    size = len(prefetch.wanted)
    if not ports:  # the last one was removed meanwhile
        return PrefetchPlan((None,) * size)
    try:
        adapters = [port.facts for port in ports]
        if seat.policy.weighs_loads and prefetch.wanted:
            plan = seat.policy.weigh(found, adapters, _facts(prefetch, ports, loading_bytes))
        else:
            plan = seat.policy.plan(found, adapters)
        sources, retain, declined = tuple(plan.sources), bool(plan.retain), tuple(plan.declined)
        if len(sources) != size:
            raise ValueError(f"the prefetch policy planned {len(sources)} of {size} keys")
        if any(place is not None and type(place) is not int for place in (*sources, *declined)):
            raise ValueError("the prefetch policy named an adapter by something else than its index")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin boundary: without a plan nothing is loaded
        if built_in := seat.failed("plan", error):
            seat.take(built_in, because_it_failed=True)
            return _ask(seat, found, ports, prefetch, loading_bytes)
        return PrefetchPlan((None,) * size)
    seat.worked("plan")
    return PrefetchPlan(sources, retain, declined)


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
