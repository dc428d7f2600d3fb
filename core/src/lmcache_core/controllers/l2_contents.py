"""What one adapter holds, as its eviction policy knows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.policies import AccessFacts, EvictionDemand, EvictionPolicy, InsertFacts, RequestFacts
from lmcache_core.controllers.adapter_port import AdapterPort
from lmcache_core.controllers.l2_objects import NumberedObjects
from lmcache_core.controllers.policy_seat import PolicySeat
from lmcache_core.model.keys import KeySpace, ObjectKey


class Learned(NamedTuple):
    """Numbers of objects that were known already, and those that are out of use because an object changed its size."""

    known: list[int]
    replaced: list[int]


class L2Contents:
    """Numbers the adapter's objects and tells the policy of them.  One thread, which owns the policy."""

    def __init__(
        self,
        port: AdapterPort,
        policy: EvictionPolicy,
        clock: Clock,
        built_in: Callable[[], EvictionPolicy] | None = None,
    ) -> None:
        """`built_in` makes the policy that takes over where `policy` fails again and again."""
        self._port = port
        self.seat = PolicySeat(f"eviction policy of adapter {port.name}", policy, clock, built_in)
        self._clock = clock
        self.objects = NumberedObjects()

    def learn(self, keys: Sequence[ObjectKey], size: int | None) -> Learned:
        """The adapter has these: new objects, or accesses to known ones.  Without a size: what they usually have."""
        facts = RequestFacts(seconds=self._clock.monotonic())
        learned = Learned([], [])
        new: dict[tuple[KeySpace, int], list[ObjectKey]] = {}
        for key in dict.fromkeys(keys):
            number = self.objects.find(key)
            if number < 0:
                new.setdefault((key.space, size or self._usual_size(key)), []).append(key)
            elif size is not None and size != self.objects.size(number):
                learned.replaced.append(number)
                self.forget([number])
                new.setdefault((key.space, size), []).append(key)
            else:
                learned.known.append(number)
        if learned.known:
            self._tell("on_access", lambda: self.seat.policy.on_access(learned.known, AccessFacts(0, facts)))
        for (space, object_bytes), group in new.items():
            numbers = [self.objects.add(key, object_bytes) for key in group]
            identities = tuple(key.chunk_hash for key in group)
            self._insert(numbers, InsertFacts(object_bytes, space, 0, identities, facts))
        return learned

    def forget(self, numbers: Sequence[int]) -> None:
        """The adapter has these no more."""
        for number in numbers:
            self.objects.remove(number)
        if numbers:
            self._tell("on_remove", lambda: self.seat.policy.on_remove(numbers))

    def victims(self, wanted_bytes: int, may_evict: Callable[[int], bool]) -> list[int]:
        """What the policy would delete, each once, and only what may be."""
        try:
            named = self.seat.policy.victims(EvictionDemand(wanted_bytes, {}), may_evict)
            victims = [number for number in dict.fromkeys(named) if may_evict(number)]
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin boundary
            self._failed("victims", error)
            return []
        self.seat.worked("victims")
        return victims

    def _insert(self, numbers: Sequence[int], facts: InsertFacts) -> None:
        self._tell("on_insert", lambda: self.seat.policy.on_insert(numbers, facts))

    def _usual_size(self, key: ObjectKey) -> int:
        if (size := self.objects.usual_size(key.space)) is not None:
            return size
        usage = self._port.usage()
        return max(1, usage.used_bytes // usage.objects) if usage and usage.objects > 0 else 1

    def _tell(self, method: str, call: Callable[[], None]) -> None:
        try:
            call()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin boundary; the notes behind it must come through
            self._failed(method, error)
        else:
            self.seat.worked(method)

    def _failed(self, method: str, error: BaseException) -> None:
        """After repeated failures the built-in policy learns all objects and takes over."""
        if built_in := self.seat.failed(method, error):
            self.seat.take(built_in, because_it_failed=True)
            facts = RequestFacts(seconds=self._clock.monotonic())
            for number, key, size in self.objects.everything():
                built_in.on_insert([number], InsertFacts(size, key.space, 0, (key.chunk_hash,), facts))
