"""Both slot tables, by example and against a model that is too simple to be wrong."""

from __future__ import annotations

import gc
import random
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from lmcache_core.kernels.choice import Kernels
from lmcache_core.kernels.interfaces import SlotTable

SLOTS = 24


def chunk_hash(number: int) -> bytes:
    return number.to_bytes(32, "big")


HASHES = tuple(map(chunk_hash, range(8)))


@pytest.fixture
def table(kernels: Kernels) -> SlotTable:
    made = kernels.slot_table()
    made.grow(SLOTS)
    return made


def fill(table: SlotTable, *slots: int, space: int = 0) -> None:
    """Ready objects without references; each has the hash of its slot's number."""
    table.begin(space, [chunk_hash(slot) for slot in slots], slots)
    table.publish(slots, 0, False)


def test_spaces_and_hashes_are_distinguished(table: SlotTable) -> None:
    fill(table, 1, 2, space=7)
    fill(table, 3, space=2**32 - 2)
    assert table.acquire(7, [chunk_hash(2), chunk_hash(3), chunk_hash(1)]) == [2, -1, 1]
    assert table.acquire(2**32 - 2, (chunk_hash(3),)) == [3]
    assert table.acquire(8, [chunk_hash(1)]) == [-1]
    assert table.key(3) == (2**32 - 2, chunk_hash(3))


def test_hashes_that_differ_in_one_byte_are_different(table: SlotTable) -> None:
    hashes = [bytes(at) + b"\x01" + bytes(31 - at) for at in range(0, 32, 2)]
    table.begin(0, hashes, range(16))
    table.publish(range(16), 0, False)
    assert table.acquire(0, hashes) == list(range(16))
    others = [bytes(at) + b"\x01" + bytes(31 - at) for at in range(1, 32, 2)]
    assert table.acquire(0, others) == [-1] * 16


def test_one_chunk_that_is_asked_for_twice_is_held_twice(table: SlotTable) -> None:
    fill(table, 5)
    assert table.acquire(0, [chunk_hash(5)] * 2) == [5, 5]
    assert table.holds(5) == 2
    assert table.release_from([5, 5], [5]) == ([], [])
    assert table.holds(5) == 0


def test_all_or_none(table: SlotTable) -> None:
    fill(table, 1, 2)
    assert table.acquire_all(0, [chunk_hash(1), chunk_hash(9)]) is None
    assert table.held == 0
    assert table.acquire_all(0, [chunk_hash(1), chunk_hash(2)]) == [1, 2]
    assert table.acquire_all(0, []) == []
    assert table.held == 2


def test_release_from_takes_every_mention_and_ignores_other_slots(table: SlotTable) -> None:
    fill(table, 1, 2, 3)
    table.hold([1, 2, 1, 3])
    assert table.release_from([1, 2, 1, 3], [1, -1, 10**9, 3, 23]) == ([2], [])
    assert [table.holds(slot) for slot in (1, 2, 3)] == [0, 1, 0]


def test_the_first_of_equal_absent_chunks_counts(table: SlotTable) -> None:
    fill(table, 1)
    table.begin(0, [chunk_hash(2)], [2])
    asked = [chunk_hash(number) for number in (1, 3, 2, 3, 4)]
    assert table.absent(0, asked) == [1, 4]
    assert table.absent(1, asked) == [0, 1, 2, 4]


@pytest.mark.parametrize("bad", [b"", bytes(31), bytes(33)])
def test_a_hash_of_another_length_gets_no_slot(table: SlotTable, bad: bytes) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        table.begin(0, [bad], [0])
    assert table.acquire(0, [bytes(32)]) == [-1]


def test_what_is_not_a_slot_may_not_be_evicted(table: SlotTable) -> None:
    fill(table, 1)
    assert [table.may_evict(slot) for slot in (-1, 0, 1, SLOTS, 2**31, 2**63, 10**30)] == [False] * 2 + [True] + [
        False
    ] * 4
    assert table.evictable([10**30, 1, 1, -5, 0, SLOTS]) == [1]
    assert table.evictable({1: None}) == [1]
    with pytest.raises(TypeError):
        table.may_evict("1")  # type: ignore[arg-type]
    with pytest.raises(IndexError):
        table.state(SLOTS)
    with pytest.raises(KeyError):
        table.key(0)


def test_a_large_space_finds_all_of_its_chunks_and_forgets_them(kernels: Kernels) -> None:
    """Beyond the sizes at which indexes are split and grow."""
    count = 40_000
    table = kernels.slot_table()
    table.grow(count)
    random_bytes = random.Random(7).randbytes
    hashes = [random_bytes(32) for _ in range(count)]
    for begin in range(0, count, 1000):
        table.begin(3, hashes[begin : begin + 1000], range(begin, begin + 1000))
        table.publish(range(begin, begin + 1000), 0, False)
    assert table.acquire(3, hashes) == list(range(count))
    assert table.release(range(count)) == []
    order = list(range(count))
    random.Random(8).shuffle(order)
    assert table.remove(order[: count // 2]) == {3: count // 2}
    gone = set(order[: count // 2])
    assert table.acquire(3, hashes) == [-1 if slot in gone else slot for slot in range(count)]
    assert table.remove(order[count // 2 :]) == {3: count // 2}
    assert table.acquire(3, hashes[:100]) == [-1] * 100
    assert (table.findable, table.held, table.cached) == (0, 0, 0)


@dataclass
class Entry:
    key: tuple[int, bytes]
    holds: int
    kind: str
    temporary: bool = False


SPACES = st.integers(0, 2)
BATCH = st.lists(st.sampled_from(HASHES), max_size=6)
PICKS = st.lists(st.integers(0, SLOTS - 1), max_size=6, unique=True)


def table_machine(kernels: Kernels) -> type[RuleBasedStateMachine]:
    class AgainstADictionary(RuleBasedStateMachine):
        @initialize()
        def empty(self) -> None:
            self.table = kernels.slot_table()
            self.table.grow(SLOTS - 4)
            self.table.grow(4)
            self.model: dict[int, Entry] = {}

        def find(self, space: int, asked: bytes) -> int:
            keys = [slot for slot, entry in self.model.items() if entry.key == (space, asked) and entry.kind == "ready"]
            return keys[0] if keys else -1

        def those(self, slots: list[int], *kinds: str) -> list[int]:
            return [slot for slot in slots if slot in self.model and self.model[slot].kind in kinds]

        @rule(space=SPACES, asked=BATCH)
        def begin(self, space: int, asked: list[bytes]) -> None:
            taken = {entry.key for entry in self.model.values() if entry.kind != "leaving"}
            expected = []
            for index, value in enumerate(asked):
                if (space, value) not in taken:
                    taken.add((space, value))
                    expected.append(index)
            assert self.table.absent(space, asked) == expected
            free = [slot for slot in range(SLOTS) if slot not in self.model][: len(expected)]
            hashes = [asked[index] for index in expected[: len(free)]]
            self.table.begin(space, hashes, free)
            self.model.update(
                {slot: Entry((space, value), 1, "writing") for slot, value in zip(free, hashes, strict=True)}
            )

        @rule(slots=PICKS, holds=st.integers(0, 2), temporary=st.booleans())
        def publish(self, slots: list[int], holds: int, temporary: bool) -> None:
            written = self.those(slots, "writing")
            self.table.publish(written, holds, temporary)
            for slot in written:
                self.model[slot] = Entry(self.model[slot].key, holds, "ready", temporary)

        @rule(space=SPACES, asked=BATCH, everything=st.booleans())
        def acquire(self, space: int, asked: list[bytes], everything: bool) -> None:
            expected = [self.find(space, value) for value in asked]
            if everything:
                got = self.table.acquire_all(space, asked)
                assert got == (None if -1 in expected else expected)
                if got is None:
                    return
            else:
                assert self.table.acquire(space, asked) == expected
            for slot in expected:
                if slot >= 0:
                    self.model[slot].holds += 1

        @rule(slots=PICKS)
        def hold(self, slots: list[int]) -> None:
            known = self.those(slots, "ready", "leaving")
            self.table.hold(known)
            for slot in known:
                self.model[slot].holds += 1

        @rule(slots=st.lists(st.integers(0, SLOTS - 1), max_size=8), some=PICKS, part=st.booleans())
        def release(self, slots: list[int], some: list[int], part: bool) -> None:
            wanted = Counter(slots)
            held = [s for s in wanted.elements() if s in self.model and self.model[s].kind != "writing"]
            held = [s for at, s in enumerate(held) if held[:at].count(s) < self.model[s].holds]
            gone = [slot for slot in held if slot in some] if part else held
            for slot in gone:
                self.model[slot].holds -= 1
            due = {slot for slot in gone if not self.model[slot].holds and self.leaves(slot)}
            if part:
                kept, leaving = self.table.release_from(held, some)
                assert kept == [slot for slot in held if slot not in some]
            else:
                leaving = self.table.release(held)
            assert sorted(leaving) == sorted(due)

        def leaves(self, slot: int) -> bool:
            return self.model[slot].temporary or self.model[slot].kind != "ready"

        @rule(slots=PICKS)
        def hide(self, slots: list[int]) -> None:
            known = self.those(slots, "ready", "writing")
            self.table.hide(known)
            for slot in known:
                self.model[slot] = Entry(self.model[slot].key, self.model[slot].holds, "leaving")

        @rule(slots=PICKS)
        def mark_temporary(self, slots: list[int]) -> None:
            plain = [slot for slot in self.those(slots, "ready") if not self.model[slot].temporary]
            assert self.table.mark_temporary(slots) == [slot for slot in plain if not self.model[slot].holds]
            for slot in plain:
                self.model[slot].temporary = True

        @rule(slots=PICKS)
        def remove(self, slots: list[int]) -> None:
            known = self.those(slots, "ready", "writing", "leaving")
            assert self.table.remove(known) == Counter(self.model[slot].key[0] for slot in known)
            for slot in known:
                del self.model[slot]

        @invariant()
        def same(self) -> None:
            expected = {
                slot: (*entry.key, entry.holds, entry.kind == "ready", entry.temporary)
                for slot, entry in self.model.items()
            }
            assert {slot: self.table.state(slot) for slot in range(SLOTS) if self.table.state(slot)} == expected
            held = sum(entry.holds > 0 for entry in self.model.values())
            assert (self.table.held, self.table.cached) == (held, len(self.model) - held)
            ready = [slot for slot in range(SLOTS) if slot in self.model and self.model[slot].kind == "ready"]
            assert self.table.findable == len(ready)
            idle = [slot for slot in ready if not self.model[slot].holds]
            assert self.table.ready(0, SLOTS) == (idle, [slot for slot in ready if self.model[slot].holds])
            may_go = [slot for slot in idle if not self.model[slot].temporary]
            assert self.table.evictable(range(SLOTS)) == may_go
            assert [slot for slot in range(SLOTS) if self.table.may_evict(slot)] == may_go
            for space in range(3):
                for value in HASHES:
                    assert self.table.contains(space, value) == (self.find(space, value) >= 0)

    return AgainstADictionary


def test_no_history_tells_it_from_a_dictionary(kernels: Kernels) -> None:
    run_state_machine_as_test(
        table_machine(kernels), settings=settings(max_examples=80, stateful_step_count=40, deadline=None)
    )


def test_the_garbage_collector_has_nothing_to_walk(kernels: Kernels) -> None:
    """No container that grows with the number of slots is among what a collection looks at."""
    count = 20_000
    table = kernels.slot_table()
    table.grow(count)
    known = set(map(id, gc.get_objects()))
    hashes = [number.to_bytes(32, "little") for number in range(count)]
    for begin in range(0, count, 1000):
        table.begin(0, hashes[begin : begin + 1000], range(begin, begin + 1000))
        table.publish(range(begin, begin + 1000), 0, False)
    del hashes
    gc.collect()
    known.add(id(known))
    walked = [thing for thing in gc.get_objects() if type(thing) in (list, dict, set) and id(thing) not in known]
    assert sum(map(len, walked)) < count / 10
    assert table.findable == count
