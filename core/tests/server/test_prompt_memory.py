"""What is remembered of prompts: found by content, bounded, and apart for each tenant."""

from __future__ import annotations

import hashlib
import struct
import sys
import tracemalloc
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lmcache_client.engine_key import TokenSequence, encode_tokens
from lmcache_core.server.prompt_memory import FORGOTTEN_AT_ONCE, NODE_BYTES, PromptMemory, PromptTree
from lmcache_devkit.fake_clock import FakeClock

CHUNK = 4


def hashed(prompt: bytes) -> list[bytes]:
    """Stand-ins for hashes, one for each chunk of four one-byte tokens."""
    return [hashlib.sha256(prompt[:end]).digest() for end in range(CHUNK, len(prompt) + 1, CHUNK)]


def remember(memory: PromptMemory, prompt: bytes, salt: str = "") -> None:
    sequence = TokenSequence.of(encode_tokens(prompt), salt)
    hashes = hashed(prompt)
    memory.remember(sequence, hashes, range(CHUNK, len(prompt) + 1, CHUNK), 0)


def known(memory: PromptMemory, prompt: bytes, salt: str = "") -> int:
    """How many bytes are known; checks that nothing wrong is."""
    found = memory.find(salt, memoryview(prompt), len(prompt) // CHUNK)
    assert list(found.hashes) == hashed(prompt)[: len(found.hashes)]
    assert found.end == CHUNK * len(found.hashes)
    assert found.end <= found.same < found.end + CHUNK or found.same == len(prompt)
    return found.same


def common(one: bytes, other: bytes) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


PROMPTS = st.binary(max_size=24).map(lambda data: bytes(byte % 3 for byte in data))


@given(st.lists(PROMPTS, max_size=20), st.lists(PROMPTS, max_size=20))
def test_the_longest_known_beginning_is_found(added: list[bytes], asked: list[bytes]) -> None:
    memory = PromptMemory(600, FakeClock())
    for number, prompt in enumerate(added):
        remember(memory, prompt)
        for other in (*asked, *added):
            assert known(memory, other) == max(common(other, each) for each in added[: number + 1])


@given(PROMPTS, st.integers(0, 5))
def test_no_more_chunks_are_given_than_asked_for(prompt: bytes, chunks: int) -> None:
    memory = PromptMemory(600, FakeClock())
    remember(memory, prompt)
    found = memory.find("", memoryview(prompt), chunks)
    assert list(found.hashes) == hashed(prompt)[:chunks]
    assert found.end == CHUNK * len(found.hashes)


def test_bytes_behind_the_integers_do_not_matter() -> None:
    memory = PromptMemory(600, FakeClock())
    prompt = bytes(range(20))
    remember(memory, prompt)
    found = memory.find("", memoryview(prompt + b"\xa5start\x00"), 5)
    assert (len(found.hashes), found.same) == (5, 20)


def test_one_tenant_learns_nothing_of_another() -> None:
    memory = PromptMemory(600, FakeClock())
    remember(memory, bytes(100), "one")
    assert known(memory, bytes(100), "one") == 100
    assert known(memory, bytes(100), "other") == known(memory, bytes(100)) == 0


def test_a_common_beginning_is_kept_once() -> None:
    memory = PromptMemory(600, FakeClock())
    system = bytes(number % 100 for number in range(10_000))
    remember(memory, system)
    before = memory.size_bytes
    for turn in range(20):
        remember(memory, system + bytes([turn]) * 8)
    assert memory.size_bytes - before < 20 * (NODE_BYTES + 8 + 300)


def test_a_prompt_that_grows_takes_no_more_than_its_last_form() -> None:
    memory = PromptMemory(600, FakeClock())
    prompt = bytes(number % 100 for number in range(8_000))
    for size in range(100, 8_001, 100):
        remember(memory, prompt[:size])
        assert known(memory, prompt) == size
    whole = PromptMemory(600, FakeClock())
    remember(whole, prompt)
    assert len(memory) < 10, "and its path stays short"
    assert memory.size_bytes < whole.size_bytes + 10 * NODE_BYTES


def test_what_was_not_seen_for_long_is_forgotten() -> None:
    clock = FakeClock()
    memory = PromptMemory(600, clock)
    remember(memory, b"\x01" * 100 + b"\x02" * 100)
    remember(memory, b"\x01" * 100 + b"\x03" * 100)
    remember(memory, b"\x04" * 100, "other")
    clock.advance(400)
    assert known(memory, b"\x01" * 100 + b"\x02" * 100) == 200
    clock.advance(300)
    memory.expire()
    assert known(memory, b"\x01" * 100 + b"\x02" * 100) == 200
    assert known(memory, b"\x01" * 100 + b"\x03" * 100) == 100
    assert known(memory, b"\x04" * 100, "other") == 0
    clock.advance(601)
    memory.expire()
    assert (len(memory), memory.size_bytes) == (0, 0)


def test_the_longest_unused_of_the_largest_tenant_is_forgotten_first() -> None:
    clock = FakeClock()
    memory = PromptMemory(600, clock, bytes_max=100_000)
    remember(memory, b"\x7f" * 1000, "small")
    for number in range(100):
        clock.advance(1)
        remember(memory, bytes([number]) * 400, "large")
        assert memory.size_bytes <= 100_000
    assert known(memory, b"\x7f" * 1000, "small") == 1000, "though it is the oldest"
    assert known(memory, bytes([99]) * 400, "large") == 400
    assert known(memory, bytes([0]) * 400, "large") == 0


def test_a_prompt_too_large_for_the_memory_is_left_out() -> None:
    memory = PromptMemory(600, FakeClock(), bytes_max=10_000)
    remember(memory, b"\x01" * 100)
    remember(memory, b"\x02" * 300)
    assert (known(memory, b"\x01" * 100), known(memory, b"\x02" * 300)) == (100, 0)


@pytest.mark.parametrize("tenants", [3, 300])
def test_many_tenants_share_the_bound(tenants: int) -> None:
    memory = PromptMemory(600, FakeClock(), bytes_max=200_000)
    for number in range(1000):
        remember(memory, struct.pack(">I", number & 0x7F) * 10, str(number % tenants))
        assert memory.size_bytes <= 200_000


def test_tenants_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_core.server.prompt_memory.TENANTS_MAX", 3)
    memory = PromptMemory(600, FakeClock())
    for salt in "abc":
        remember(memory, b"\x01" * 40 + b"\x02" * 40, salt)
        remember(memory, b"\x01" * 40 + b"\x03" * 40, salt)
    known(memory, b"\x01" * 40, "a")
    full = memory.size_bytes
    remember(memory, b"\x01" * 80, "d")
    assert [known(memory, b"\x01" * 40, salt) for salt in "abcd"] == [40, 0, 40, 40], "the longest unused one"
    assert memory.size_bytes < full
    assert memory.status() == {"tenants": 3, "bytes": memory.size_bytes, "bytes_max": 128 << 20}


def test_a_tenant_with_much_is_forgotten_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_core.server.prompt_memory.TENANTS_MAX", 1)
    monkeypatch.setattr("lmcache_core.server.prompt_memory.FORGOTTEN_AT_ONCE", 10)
    memory = PromptMemory(600, FakeClock())
    for number in range(100):
        remember(memory, bytes([number]) * 8, "old")
    for number in range(10):
        remember(memory, bytes([number]) * 8, "new")
        assert len(memory) == 100 - 9 * (number + 1)
    assert memory.status() == {"tenants": 1, "bytes": memory.size_bytes, "bytes_max": 128 << 20}


def test_no_request_waits_until_all_that_is_old_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_core.server.prompt_memory.FORGOTTEN_AT_ONCE", 10)
    clock = FakeClock()
    memory = PromptMemory(600, clock)
    for number in range(100):
        remember(memory, bytes([number]) * 8)
    clock.advance(601)
    left: list[int] = []

    class Lock:
        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None:
            left.append(sum(map(len, memory._trees.values())))

    monkeypatch.setattr(memory, "_lock", Lock())
    memory.expire()
    assert max(before - after for before, after in pairwise(left)) == 10
    assert (left[-1], memory.size_bytes) == (0, 0)


@pytest.mark.parametrize(("size", "bytes_max", "most"), [(8, 4 << 20, FORGOTTEN_AT_ONCE), (400, 200_000, 2)])
def test_room_is_made_in_small_steps(size: int, bytes_max: int, most: int) -> None:
    """Neither long ones, where prompts are short, nor ones that forget more than has to be, where they are long."""
    memory = PromptMemory(600, FakeClock(), bytes_max=bytes_max)
    shrunk = 0
    for number in range(12_000 if size == 8 else 100):
        before = len(memory)
        remember(memory, bytes((number >> 14, number >> 7 & 0x7F, number & 0x7F, 1)) * (size // 4))
        assert before - len(memory) < most
        assert memory.size_bytes <= bytes_max
        shrunk += len(memory) <= before
    assert shrunk


def test_sizes_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_core.server.prompt_memory.TENANTS_MAX", 5)
    clock = FakeClock()
    memory = PromptMemory(100, clock, bytes_max=20_000)
    for number in range(500):
        clock.advance(number % 7)
        remember(memory, bytes([number % 3, number % 5]) * (4 + number % 60), str(number % 11 % 7))
        memory.expire()
        assert memory.size_bytes == sum(tree.size_bytes for tree in memory._trees.values())


def test_a_prompt_that_many_others_part_from_stays_quick_to_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_core.server.prompt_memory.PATH_MAX", 10)
    memory = PromptMemory(600, FakeClock())
    for size in range(100, 0, -1):
        remember(memory, bytes([1]) * size + bytes([2]) * 8)
    assert 0 < known(memory, bytes([1]) * 100) < 100
    assert len(memory) <= 200
    for size in range(1, 101):
        remember(memory, bytes([1]) * size + bytes([3]) * 8)
        known(memory, bytes([1]) * size + bytes([3]) * 8)
    tree = memory._trees[""]
    assert tree.forget(len(tree))
    assert not tree.forget(1)
    assert (len(tree), tree.size_bytes) == (0, NODE_BYTES)


def test_what_is_forgotten_is_given_back() -> None:
    """The garbage collector does not know the nodes: a reference too many would keep them for ever."""
    tree = PromptTree()
    left: list[int] = []
    tracemalloc.start()
    for _ in range(3):
        for number in range(2000):
            prompt = bytes((1, number % 3, number % 50, number % 100)) * 5 + bytes(number % 7)
            tree.add(memoryview(prompt), hashed(prompt), range(CHUNK, len(prompt) + 1, CHUNK), 0.0)
        assert len(tree) > 500
        while tree.forget(10):
            pass
        left.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert left[-1] - left[0] < 10_000, "beyond what Python keeps for its next tuples"


def chained(tree: PromptTree) -> list[Any]:
    """All nodes, longest unused first; checks that the chain is whole in both directions."""
    nodes: list[Any] = []
    node = tree._oldest
    while node is not None:
        assert node.older is (nodes[-1] if nodes else None)
        nodes.append(node)
        node = node.newer
    assert tree._newest is (nodes[-1] if nodes else None)
    return nodes


class TreeMachine(RuleBasedStateMachine):
    """Against a plain set of prompts: never wrong, nothing forgotten unasked, sizes add up."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = PromptTree()
        self.prompts: set[bytes] = set()
        self.now = 0.0

    @rule(prompt=PROMPTS)
    def add(self, prompt: bytes) -> None:
        self.now += 1
        self.tree.add(memoryview(prompt), hashed(prompt), range(CHUNK, len(prompt) + 1, CHUNK), self.now)
        self.prompts.add(prompt)

    @rule(prompt=PROMPTS, chunks=st.integers(0, 6))
    def find(self, prompt: bytes, chunks: int) -> None:
        self.now += 1
        found = self.tree.find(memoryview(prompt), chunks, self.now)
        assert found.same <= max((common(prompt, each) for each in self.prompts), default=0)
        assert list(found.hashes) == hashed(prompt[: found.same])[:chunks]
        assert found.end == CHUNK * len(found.hashes)

    @rule()
    def forget_one(self) -> None:
        oldest = self.tree._oldest
        assert oldest is None or not oldest.children, "nothing is cut off from its beginning"
        before = len(self.tree)
        self.tree.forget(1)
        assert len(self.tree) == max(0, before - 1)

    @rule(age=st.integers(0, 10))
    def forget_unused(self, age: int) -> None:
        while self.tree.forget(2, self.now - age):
            pass
        assert all(node.used >= self.now - age for node in chained(self.tree))

    @invariant()
    def the_parts_make_the_whole(self) -> None:
        seen, size = 0, NODE_BYTES
        chain = {id(node): age for age, node in enumerate(chained(self.tree))}
        below = [self.tree._root]
        while below:
            node = below.pop()
            for first, child in node.children.items():
                assert child.above is node
                assert child.segment[0] == first
                assert node is self.tree._root or chain[id(node)] > chain[id(child)]
                assert child.start == node.start + len(node.segment)
                assert child.used <= node.used or node is self.tree._root
                assert len(child.hashes) == len(child.ends)
                assert all(child.start < end <= child.start + len(child.segment) for end in child.ends)
                seen, size = seen + 1, size + child.size_bytes
                below.append(child)
        assert (seen, size) == (len(self.tree), self.tree.size_bytes)
        assert len(chain) == seen


TestTree = TreeMachine.TestCase


def test_prompts_that_are_forgotten_for_a_listener_leave_no_memory() -> None:
    """The garbage collector does not find them."""
    memory = PromptMemory(600, FakeClock())

    def fill_and_listen() -> None:
        for number in range(100):
            remember(memory, bytes([number]) * 24, salt=str(number % 3))
        memory.listen(lambda _: None)()
        assert (len(memory), memory.size_bytes) == (0, 0)

    fill_and_listen()
    before = sys.getallocatedblocks()
    for _ in range(10):
        fill_and_listen()
    assert sys.getallocatedblocks() - before < 1000
