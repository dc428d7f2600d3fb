"""An eviction policy beside a model of its calls, and the requirements that hold for all calls.

`ModelledPolicy` passes everything on and checks every answer; `policy_machine` lets Hypothesis look for a history that
breaks a requirement.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lmcache_core.contracts.policies import (
    NO_SALTS,
    AccessFacts,
    EvictionDemand,
    EvictionPolicy,
    InsertFacts,
    RequestFacts,
)
from lmcache_core.model.keys import HashChain, KeySpace

SMALL, LARGE = 4096, 12288
SALTS = ("", "tenant")
_SPACES = {salt: KeySpace("m", 0, 0, salt, 256, HashChain.BLAKE3, bytes(16)) for salt in SALTS}
_CALLS_PER_SLOT = 8
_LINES_PER_SLOT = 400
_LINES_PER_CALL = 20_000


class Live(NamedTuple):
    """What a slot holds."""

    slot_bytes: int
    salt: str


class ModelledPolicy:
    """`live` are the slots that the policy must know, `held` those that must not be evicted."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self.live: dict[int, Live] = {}
        self.held: set[int] = set()

    def insert(
        self,
        slots: Sequence[int],
        slot_bytes: int = SMALL,
        salt: str = "",
        keys: Sequence[bytes] | None = None,
        request: int = 0,
    ) -> None:
        """New objects; of one prompt, whose first chunk is in the first slot."""
        identities = [b"object %29d" % slot for slot in slots] if keys is None else keys
        facts = InsertFacts(slot_bytes, space_of(salt), 0, tuple(identities), RequestFacts(0.0, request, len(slots)))
        self.policy.on_insert(list(slots), facts)
        self.live.update(dict.fromkeys(slots, Live(slot_bytes, salt)))
        self.held.difference_update(slots)

    def access(self, slots: Sequence[int], request: int = 0) -> None:
        self.policy.on_access(list(slots), AccessFacts(0, RequestFacts(0.0, request, len(slots), len(slots))))

    def remove(self, slots: Sequence[int]) -> None:
        self.policy.on_remove(list(slots))
        for slot in slots:
            self.live.pop(slot, None)
        self.held.difference_update(slots)

    def victims(
        self, any_bytes: int = 0, by_slot_bytes: Mapping[int, int] | None = None, by_salt: Mapping[str, int] = NO_SALTS
    ) -> list[int]:
        """What the policy names, after the requirements have been checked."""
        demand = EvictionDemand(any_bytes, by_slot_bytes or {}, by_salt)
        calls_left = _CALLS_PER_SLOT * len(self.live) + 64

        def may_evict(slot: int) -> bool:
            nonlocal calls_left
            calls_left -= 1
            assert calls_left >= 0, f"asked about slots more than {_CALLS_PER_SLOT} times as often as there are slots"
            return slot not in self.held and slot in self.live

        with line_budget(_LINES_PER_CALL + _LINES_PER_SLOT * len(self.live)):
            victims = list(self.policy.victims(demand, may_evict))
        self._check_names(victims)
        self._check_salts(victims, demand)
        if self.policy.evicts:
            self._check_bytes(victims, demand)
        return victims

    def evict(self, any_bytes: int) -> list[int]:
        """Ask for victims and take them all."""
        victims = self.victims(any_bytes)
        self.remove(victims)
        return victims

    def bytes_of(self, slots: Sequence[int]) -> int:
        return sum(self.live[slot].slot_bytes for slot in slots)

    def _check_names(self, victims: Sequence[int]) -> None:
        assert len(set(victims)) == len(victims), f"named twice: {duplicates(victims)}"
        unknown = [slot for slot in victims if slot not in self.live]
        assert not unknown, f"named slots that are empty or were never inserted: {unknown}"
        refused = [slot for slot in victims if slot in self.held]
        assert not refused, f"named slots that may_evict refuses: {refused}"

    def _check_salts(self, victims: Sequence[int], demand: EvictionDemand) -> None:
        """An excess of one salt costs other salts nothing, whether it has enough evictable objects or not."""
        if not self.policy.isolates_salts or demand.any_bytes or any(demand.by_slot_bytes.values()):
            return
        others = [slot for slot in victims if self.live[slot].salt not in demand.by_salt]
        assert not others, f"named for the salts {sorted(demand.by_salt)}, and of another one: {others}"

    def _check_bytes(self, victims: Sequence[int], demand: EvictionDemand) -> None:
        """Enough of every kind that was asked for, as far as there is enough that may go."""
        free = [slot for slot in self.live if slot not in self.held]
        of_size = {size: [s for s in free if self.live[s].slot_bytes == size] for size in demand.by_slot_bytes}
        of_salt = {salt: [s for s in free if self.live[s].salt == salt] for salt in demand.by_salt}
        special = 0
        for size, wanted in demand.by_slot_bytes.items():
            due = min(wanted, self.bytes_of(of_size[size]))
            special += due
            got = self.bytes_of([slot for slot in victims if self.live[slot].slot_bytes == size])
            assert got >= due, f"of slots of {size} bytes, {got} bytes were named where {due} could have been"
        for salt, wanted in demand.by_salt.items() if self.policy.isolates_salts else ():
            due = min(wanted, self.bytes_of(of_salt[salt]))
            special += due
            got = self.bytes_of([slot for slot in victims if self.live[slot].salt == salt])
            assert got >= due, f"of salt {salt!r}, {got} bytes were named where {due} could have been"
        if demand.by_slot_bytes and demand.by_salt:
            special = 0  # one slot may be due to both
        due, got = min(demand.any_bytes + special, self.bytes_of(free)), self.bytes_of(victims)
        assert got >= due, f"{got} bytes were named where {due} were wanted and could have been"


def space_of(salt: str) -> KeySpace:
    """The same object for the same salt, as the server does it, as long as the salt is one of SALTS."""
    return _SPACES[salt] if salt in _SPACES else KeySpace("m", 0, 0, salt, 256, HashChain.BLAKE3, bytes(16))


def duplicates(slots: Sequence[int]) -> list[int]:
    return sorted({slot for slot in slots if list(slots).count(slot) > 1})


@contextmanager
def line_budget(lines: int) -> Iterator[list[int]]:
    """Fail, instead of hanging, when more lines of Python than this run inside.  Yields a list whose one item is how many
    are left."""
    left = [lines]

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            left[0] -= 1
            if left[0] < 0:
                raise AssertionError(f"still at work after {lines} lines of Python")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        yield left
    finally:
        sys.settrace(before)


def policy_machine(open_policy: Callable[[], EvictionPolicy]) -> type[RuleBasedStateMachine]:
    """A state machine over `ModelledPolicy`, with a few slots that are used over and over."""
    slots_of = st.lists(st.integers(0, 23), unique=True, max_size=8)
    bytes_of = st.integers(0, 20) | st.integers(0, 12 * LARGE)

    class PolicyMachine(RuleBasedStateMachine):
        @initialize()
        def open(self) -> None:
            self.modelled = ModelledPolicy(open_policy())

        @rule(
            slots=slots_of,
            size=st.sampled_from([SMALL, LARGE]),
            salt=st.sampled_from(SALTS),
            life=st.integers(0, 2),
            request=st.integers(0, 3),
        )
        def insert(self, slots: list[int], size: int, salt: str, life: int, request: int) -> None:
            """Objects come back: a slot holds one of three."""
            keys = [b"object %29d" % (slot + 24 * life) for slot in slots]
            self.modelled.insert(slots, size, salt, keys, request)

        @rule(slots=slots_of, request=st.integers(0, 3))
        def access(self, slots: list[int], request: int) -> None:
            self.modelled.access(slots, request)

        @rule(slots=slots_of)
        def remove(self, slots: list[int]) -> None:
            self.modelled.remove(slots)

        @rule(slots=slots_of)
        def hold(self, slots: list[int]) -> None:
            self.modelled.held.update(slots)

        @rule()
        def release(self) -> None:
            self.modelled.held.clear()

        @rule(wanted=bytes_of)
        def evict(self, wanted: int) -> None:
            self.modelled.evict(wanted)

        @rule(
            wanted=bytes_of,
            by_size=st.dictionaries(st.sampled_from([SMALL, LARGE, 777]), bytes_of),
            by_salt=st.dictionaries(st.sampled_from([*SALTS, "absent"]), bytes_of),
        )
        def ask(self, wanted: int, by_size: dict[int, int], by_salt: dict[str, int]) -> None:
            self.modelled.victims(wanted, by_size, by_salt)

        @invariant()
        def knows_every_slot_and_its_size(self) -> None:
            self.modelled.victims(10**9)
            for size in (SMALL, LARGE):
                self.modelled.victims(0, {size: 2 * size})

    return PolicyMachine
