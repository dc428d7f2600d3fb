"""Both directories: a state machine against a model, and what threads and hostile arguments do."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from array import array
from collections import defaultdict
from hashlib import blake2b
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lmcache_fleet.directory import DEAD, HIDDEN, OWNERS, VISIBLE, Directory, PureDirectory

_fleet = pytest.importorskip("lmcache_native._fleet")


@pytest.fixture(params=["pure", "native"])
def directory(request: pytest.FixtureRequest) -> Directory:
    return made(request.param)


def made(kind: str) -> Directory:
    return PureDirectory() if kind == "pure" else _fleet.Directory(1234)


def hashes(*numbers: int) -> bytes:
    return b"".join(blake2b(number.to_bytes(8, "little"), digest_size=32).digest() for number in numbers)


def owners_of(directory: Directory, space: int, *numbers: int) -> list[set[int]]:
    packed_ends, packed = directory.find(space, hashes(*numbers))
    ends, owners = array("I", packed_ends), array("H", packed)
    rows = [list(owners[begin:end]) for begin, end in pairwise([0, *ends])]
    assert all(len(set(row)) == len(row) for row in rows), "an owner is named twice"
    return [set(row) for row in rows]


KEYS = range(60)
OWNER_NUMBERS = [*range(1, 12), OWNERS - 1]


class DirectoryMachine(RuleBasedStateMachine):
    """Few keys with many owners, so that sets come and go; two spaces."""

    @initialize(kind=st.sampled_from(["pure", "native"]))
    def start(self, kind: str) -> None:
        self.directory = made(kind)
        self.states = dict.fromkeys(OWNER_NUMBERS, DEAD)
        self.has: defaultdict[int, set[tuple[int, int]]] = defaultdict(set)
        self.reusable_at = dict.fromkeys(OWNER_NUMBERS, 0)
        self.passes = 0

    @rule(owner=st.sampled_from(OWNER_NUMBERS), state=st.sampled_from([HIDDEN, VISIBLE]))
    def live(self, owner: int, state: int) -> None:
        if self.states[owner] == DEAD and self.passes < self.reusable_at[owner]:
            return
        self.states[owner] = state
        self.directory.set_state(owner, state)

    @rule(owner=st.sampled_from(OWNER_NUMBERS))
    def die(self, owner: int) -> None:
        if self.states[owner] != DEAD:
            # The pass that is under way may have been where this owner's entries are.
            self.reusable_at[owner] = self.passes + 2
        self.states[owner] = DEAD
        self.has[owner].clear()
        self.directory.set_state(owner, DEAD)

    @rule(
        owner=st.sampled_from(OWNER_NUMBERS),
        space=st.integers(0, 1),
        numbers=st.lists(st.sampled_from(KEYS), max_size=40),
    )
    def add(self, owner: int, space: int, numbers: list[int]) -> None:
        added = self.directory.add(space, hashes(*numbers), owner)
        if self.states[owner] == DEAD:
            assert added == 0
            return
        new = {(space, number) for number in numbers} - self.has[owner]
        assert added == len(new)
        self.has[owner] |= new

    @rule(
        owner=st.sampled_from(OWNER_NUMBERS),
        space=st.integers(0, 1),
        numbers=st.lists(st.sampled_from(KEYS), max_size=40),
    )
    def remove(self, owner: int, space: int, numbers: list[int]) -> None:
        removed = self.directory.remove(space, hashes(*numbers), owner)
        if self.states[owner] == DEAD:
            assert removed == 0
            return
        gone = {(space, number) for number in numbers} & self.has[owner]
        assert removed == len(gone)
        self.has[owner] -= gone

    @rule(lines=st.sampled_from([1, 7, 100_000]), times=st.sampled_from([1, 300]))
    def sweep(self, lines: int, times: int) -> None:
        for _ in range(times):
            self.passes = self.directory.sweep(lines)

    @rule(space=st.integers(0, 1), numbers=st.lists(st.sampled_from(KEYS), max_size=8))
    def prefixes(self, space: int, numbers: list[int]) -> None:
        groups = array("H", [0]) * OWNERS
        for owner in OWNER_NUMBERS:
            groups[owner] = owner % 4
        found = dict(self.directory.prefixes(space, hashes(*numbers), groups))
        expected = {}
        for group in (1, 2, 3):
            members = [o for o in OWNER_NUMBERS if o % 4 == group and self.states[o] == VISIBLE]
            length = 0
            while length < len(numbers) and any((space, numbers[length]) in self.has[o] for o in members):
                length += 1
            if length:
                expected[group] = length
        assert found == expected

    @invariant()
    def equals_the_model(self) -> None:
        if not hasattr(self, "directory"):
            return
        for space in (0, 1):
            expected = [
                {o for o in OWNER_NUMBERS if self.states[o] == VISIBLE and (space, number) in self.has[o]}
                for number in KEYS
            ]
            assert owners_of(self.directory, space, *KEYS) == expected
        for owner in OWNER_NUMBERS:
            assert self.directory.count(owner) == len(self.has[owner])


TestDirectoryMachine = DirectoryMachine.TestCase
TestDirectoryMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_many_keys_of_many_owners_are_all_found_while_the_table_grows(directory: Directory) -> None:
    chooser = random.Random(7)
    model: defaultdict[int, set[int]] = defaultdict(set)
    for owner in range(1, 41):
        directory.set_state(owner, VISIBLE)
        mine = [*range(500), *chooser.sample(range(500, 40_000), 1500)]
        assert directory.add(1, hashes(*mine), owner) == len(mine)
        for number in mine:
            model[number].add(owner)
    numbers = list(range(40_000))
    assert owners_of(directory, 1, *numbers) == [model[number] for number in numbers]
    for owner in range(1, 41, 2):
        directory.set_state(owner, DEAD)
    assert owners_of(directory, 1, *numbers) == [{o for o in model[number] if o % 2 == 0} for number in numbers]
    before = directory.size_bytes()
    while directory.sweep(4096) < 1:
        pass
    assert owners_of(directory, 1, *numbers) == [{o for o in model[number] if o % 2 == 0} for number in numbers]
    for owner in range(2, 41, 2):
        mine = [number for number in numbers if owner in model[number]]
        assert directory.remove(1, hashes(*mine), owner) == len(mine)
    assert owners_of(directory, 1, *numbers) == [set()] * len(numbers)
    assert directory.size_bytes() <= before


def test_a_hidden_owner_keeps_its_keys_and_is_seen_by_one_step(directory: Directory) -> None:
    directory.set_state(1, VISIBLE)
    directory.set_state(2, HIDDEN)
    directory.add(0, hashes(1, 2), 1)
    directory.add(0, hashes(2, 3), 2)
    assert owners_of(directory, 0, 1, 2, 3) == [{1}, {1}, set()]
    directory.set_state(2, VISIBLE)
    directory.set_state(1, DEAD)
    assert owners_of(directory, 0, 1, 2, 3) == [set(), {2}, {2}]


def test_what_cannot_be_is_refused_and_changes_nothing(directory: Directory) -> None:
    directory.set_state(1, VISIBLE)
    for call in (
        lambda: directory.add(0, b"x" * 33, 1),
        lambda: directory.find(0, b"x" * 31),
        lambda: directory.add(0, hashes(1), 0),
        lambda: directory.remove(0, hashes(1), OWNERS),
        lambda: directory.set_state(-1, VISIBLE),
        lambda: directory.prefixes(0, hashes(1), b"\0" * 100),
        lambda: directory.sweep(0),
    ):
        with pytest.raises(ValueError, match=r"."):
            call()
    assert owners_of(directory, 0, 1) == [set()]
    assert directory.count(1) == 0


def test_a_placement_takes_less_than_21_bytes_and_the_table_grows_in_small_steps() -> None:
    directory = made("native")
    keys = random.Random(5).randbytes(32 * 2_000_000)
    step = len(keys) // 20
    sizes = []
    for owner in range(1, 21):
        directory.set_state(owner, VISIBLE)
        assert directory.add(0, keys[(owner - 1) * step : owner * step], owner) == step // 32
        sizes.append(directory.size_bytes())
    placements = [owner * step // 32 for owner in range(1, 21)]
    huge_page = 2 << 20
    assert all(size <= 21 * count + huge_page for size, count in zip(sizes[10:], placements[10:], strict=True))
    assert all(after <= before * 1.15 + huge_page for before, after in pairwise(sizes[10:]))


def test_a_limit_of_address_space_leaves_a_smaller_table() -> None:
    program = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from lmcache_native import _fleet
directory = _fleet.Directory(1)
directory.set_state(1, 2)
assert directory.add(0, bytes(range(32)), 1) == 1
assert directory.count(1) == 1
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_threads_add_remove_find_and_sweep_at_once(directory: Directory) -> None:
    """Each thread has an owner and keys that all share; what is left is exactly what each has left."""
    rounds, shared = 30, 300
    errors: list[Exception] = []
    stop = threading.Event()

    def change(owner: int) -> None:
        try:
            for number in range(rounds):
                directory.add(0, hashes(*range(shared)), owner)
                directory.remove(0, hashes(*range(number % 7, shared, 2)), owner)
            directory.add(0, hashes(*range(owner, shared)), owner)
            directory.remove(0, hashes(*range(owner)), owner)
        except Exception as error:  # noqa: BLE001 - shown by the test
            errors.append(error)

    def look() -> None:
        try:
            while not stop.is_set():
                for owners in owners_of(directory, 0, *range(0, shared, 10)):
                    assert owners <= set(range(1, 9))
                directory.sweep(64)
        except Exception as error:  # noqa: BLE001 - shown by the test
            errors.append(error)

    for owner in range(1, 9):
        directory.set_state(owner, VISIBLE)
    threads = [threading.Thread(target=change, args=(owner,)) for owner in range(1, 9)]
    looker = threading.Thread(target=look)
    for thread in (*threads, looker):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    looker.join()
    assert not errors
    assert owners_of(directory, 0, *range(shared)) == [
        {owner for owner in range(1, 9) if owner <= number} for number in range(shared)
    ]
    assert [directory.count(owner) for owner in range(1, 9)] == [shared - owner for owner in range(1, 9)]
