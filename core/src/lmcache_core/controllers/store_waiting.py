"""What waits for one adapter: taken from the front, dropped by a rule."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator
from enum import StrEnum

from lmcache_core.controllers.store_unit import StoreUnit
from lmcache_core.l1.leases import Lease


class DropRule(StrEnum):
    """Which waiting object is given up when there are too many.  Within one batch it is always the one that lies deepest
    in its prompt: a prefix is of use without its end, and an end is of none without its prefix."""

    NEWEST = "newest"
    OLDEST = "oldest"
    DEEPEST = "deepest"


_RANK: dict[DropRule, Callable[[StoreUnit, int], tuple[int, int]]] = {
    DropRule.NEWEST: lambda unit, ticket: (-unit.batch, -ticket),
    DropRule.OLDEST: lambda unit, ticket: (unit.batch, -ticket),
    DropRule.DEEPEST: lambda unit, ticket: (-unit.depth, -ticket),
}


class WaitingStores:
    """First in, first out; `drop` takes out the one that the rule gives up first.  One thread."""

    def __init__(self, rule: DropRule) -> None:
        self._rank = _RANK[rule]
        self._tickets = 0
        self._units: OrderedDict[int, StoreUnit] = OrderedDict()
        self._victims: list[tuple[tuple[int, int], int]] | None = None
        """A heap, with the tickets of units that are gone already in between.  None while nothing is dropped: then it would
        cost more than all the rest."""

    def follow(self, rule: DropRule) -> None:
        """From now on what is dropped is chosen by this rule."""
        self._rank = _RANK[rule]
        self._victims = None

    def __len__(self) -> int:
        return len(self._units)

    def __iter__(self) -> Iterator[StoreUnit]:
        return iter(self._units.values())

    @property
    def oldest(self) -> StoreUnit | None:
        """The one that has waited longest."""
        return next(iter(self._units.values()), None)

    def add(self, unit: StoreUnit) -> None:
        self._tickets += 1
        self._units[self._tickets] = unit
        if self._victims is None:
            return
        if len(self._victims) > 2 * len(self._units) + 64:
            self._victims = None
        else:
            heapq.heappush(self._victims, (self._rank(unit, self._tickets), self._tickets))

    def take(self) -> StoreUnit:
        """The one that has waited longest.  Raises KeyError when nothing waits."""
        return self._units.popitem(last=False)[1]

    def drop(self) -> StoreUnit:
        """The one that the rule gives up first.  Raises IndexError when nothing waits."""
        if self._victims is None:
            self._victims = [(self._rank(unit, ticket), ticket) for ticket, unit in self._units.items()]
            heapq.heapify(self._victims)
        while True:
            _, ticket = heapq.heappop(self._victims)
            unit = self._units.pop(ticket, None)
            if unit is not None:
                return unit

    def withdraw(self, lease: Lease) -> list[StoreUnit]:
        """Take out everything that this lease holds."""
        gone = {ticket: unit for ticket, unit in self._units.items() if unit.lease is lease}
        for ticket in gone:
            del self._units[ticket]
        return list(gone.values())
