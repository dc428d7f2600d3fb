"""The rules of a replay, by hand and against a naive LRU."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_core import EvictionDemand, EvictionPolicy
from lmcache_policies.simulate.replay import BadVictimError, BlockSize, Replay, Replayed
from lmcache_policies.simulate.trace import Trace
from lmcache_policies.simulate.trace_file import read_trace
from plugins.policies.tests.simulate.stand_ins import Blunderer, Diary, Hoarder, Prompts, core_lru, trace_of

SIZE = BlockSize(bytes=100, tokens=16)


def replay(trace: Trace, policy: EvictionPolicy, capacity: int, evict_ratio: float = 0.0) -> Replayed:
    return Replay(trace, policy, capacity, SIZE, evict_ratio).run()


def test_a_policy_receives_what_a_server_would_send(tmp_path: Path) -> None:
    diary = Diary()
    replayed = replay(trace_of(tmp_path, [[5, 6, 7], [5, 6, 8]]), diary, 10)
    (first, stored_first), (second, stored_second) = diary.inserted
    assert (first, stored_first.first_chunk, stored_first.request) == ([0, 1, 2], 0, (0.0, 1, 3, 0))
    assert (second, stored_second.first_chunk, stored_second.request) == ([3], 2, (1.0, 2, 3, 2))
    assert [(slots, facts.first_chunk, facts.request) for slots, facts in diary.accessed] == [
        ([0, 1], 0, (1.0, 2, 3, 2))
    ]
    assert stored_first.slot_bytes == 100
    assert stored_first.space.chunk_tokens == 16
    assert (replayed.hits, replayed.evictions, replayed.refused) == (2, 0, 0)


def test_a_block_that_comes_back_has_the_same_key_and_a_used_slot(tmp_path: Path) -> None:
    diary = Diary()
    replay(trace_of(tmp_path, [[1], [2], [1]]), diary, 1)
    keys = [facts.keys for _, facts in diary.inserted]
    assert keys[0] == keys[2] != keys[1]
    assert max(slot for slots, _ in diary.inserted for slot in slots) == 1
    assert diary.demands == [EvictionDemand(100, {})] * 2


def test_blocks_behind_a_gap_are_not_hits_and_are_not_touched(tmp_path: Path) -> None:
    diary = Diary()  # first in first out loses the beginning of a prompt first
    replayed = replay(trace_of(tmp_path, [[1, 2, 3], [4], [1, 2, 3]]), diary, 3)
    assert diary.removed[0] == [0], "block 1 goes"
    assert diary.accessed == []
    assert [len(slots) for slots, _ in diary.inserted] == [3, 1, 1], "2 and 3 are still there"
    assert (replayed.hits, replayed.behind_gap) == (0, 2)


def test_of_a_request_beyond_the_capacity_the_beginning_is_stored(tmp_path: Path) -> None:
    replayed = replay(trace_of(tmp_path, [[9], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]), core_lru(), 3)
    assert (replayed.hits, replayed.refused, replayed.evictions) == (3, 4, 1)


def test_a_policy_that_evicts_nothing_keeps_what_came_first(tmp_path: Path) -> None:
    hoarder = Hoarder()
    replayed = replay(trace_of(tmp_path, [[1, 2], [3, 4], [1, 2], [3, 4]]), hoarder, 3)
    assert (replayed.hits, replayed.refused, replayed.evictions) == (3, 2, 0)
    assert len(hoarder.order) == 3


def test_evict_ratio_asks_for_a_share_of_the_capacity(tmp_path: Path) -> None:
    diary = Diary()
    replayed = replay(trace_of(tmp_path, [[n] for n in range(12)]), diary, 10, evict_ratio=0.5)
    assert diary.demands == [EvictionDemand(500, {})]
    assert replayed.evictions == 5


@pytest.mark.parametrize("prompts", [[[1, 2, 3]], [[1], [2], [3]]])
def test_a_bad_victim_is_reported(tmp_path: Path, prompts: Prompts) -> None:
    with pytest.raises(BadVictimError, match="slot 4711 as a victim"):
        replay(trace_of(tmp_path, [*prompts, *[[n] for n in range(10, 20)]]), Blunderer(), 5)


def naive_lru(prompts: Prompts, capacity: int) -> int:
    """The same rules with an OrderedDict, oldest first."""
    cached: OrderedDict[int, None] = OrderedDict()
    total = 0
    for prompt in prompts:
        hits = next((at for at, block in enumerate(prompt) if block not in cached), len(prompt))
        total += hits
        for block in reversed(prompt[:hits]):
            cached.move_to_end(block)
        missing = [block for block in prompt[hits:] if block not in cached]
        for block in reversed(missing[: max(0, capacity - hits)]):
            cached[block] = None
        while len(cached) > capacity:
            cached.popitem(last=False)
    return total


prompts_strategy = st.lists(st.lists(st.integers(0, 9), max_size=6, unique=True), max_size=30).filter(any)


@settings(deadline=None)
@given(prompts=prompts_strategy, capacity=st.integers(1, 12))
@pytest.mark.slow
def test_lru_is_the_naive_lru(tmp_path_factory: pytest.TempPathFactory, prompts: Prompts, capacity: int) -> None:
    trace = trace_of(tmp_path_factory.getbasetemp(), prompts)
    assert replay(trace, core_lru(), capacity).hits == naive_lru(prompts, capacity)


@settings(deadline=None)
@given(blocks=st.lists(st.integers(0, 9), min_size=1, max_size=40), capacity=st.integers(1, 8))
@pytest.mark.parametrize("policy", [core_lru, Diary, Hoarder])
@pytest.mark.slow
def test_single_blocks_are_served_like_prompts_of_one(
    tmp_path_factory: pytest.TempPathFactory, blocks: Sequence[int], capacity: int, policy: Callable[[], EvictionPolicy]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    words = folder / "blocks.txt"
    words.write_text("".join(f"{block}\n" for block in blocks))
    plain, prompts = read_trace(str(words)), trace_of(folder, [[block] for block in blocks])
    assert (plain.form, prompts.form) == ("blocks", "requests")
    one, other = replay(plain, policy(), capacity), replay(prompts, policy(), capacity)
    assert (one.hits, one.evictions, one.refused) == (other.hits, other.evictions, other.refused)
