"""What each algorithm is known for, by example."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lmcache_core import EvictionPolicy
from lmcache_devkit.policy_model import LARGE, SMALL, ModelledPolicy
from lmcache_policies.eviction.arc import Arc, open_arc
from lmcache_policies.eviction.fifo import open_fifo
from lmcache_policies.eviction.isolated_lru import open_isolated_lru
from lmcache_policies.eviction.lfu import LfuSettings, open_lfu
from lmcache_policies.eviction.mru import open_mru
from lmcache_policies.eviction.noop import open_noop
from lmcache_policies.eviction.s3_fifo import S3FifoSettings, open_s3_fifo
from lmcache_policies.eviction.sieve import open_sieve
from lmcache_policies.eviction.sized_policy import SizedPolicy
from lmcache_policies.eviction.slru import SlruSettings, open_slru
from lmcache_policies.eviction.w_tiny_lfu import WTinyLfuSettings, open_w_tiny_lfu
from lmcache_policies.structures.slot_table import SlotTable

ALL = 10**9
OPENERS: dict[str, Callable[[], EvictionPolicy]] = {
    "ARC": lambda: open_arc(None),
    "FIFO": lambda: open_fifo(None),
    "IsolatedLRU": lambda: open_isolated_lru(None),
    "LFU": lambda: open_lfu(LfuSettings()),
    "MRU": lambda: open_mru(None),
    "S3FIFO": lambda: open_s3_fifo(S3FifoSettings()),
    "SIEVE": lambda: open_sieve(None),
    "SLRU": lambda: open_slru(SlruSettings()),
    "W-TinyLFU": lambda: open_w_tiny_lfu(WTinyLfuSettings()),
}


def filled(policy: EvictionPolicy, slots: int) -> ModelledPolicy:
    """Slot 0 holds the oldest object; each came alone."""
    modelled = ModelledPolicy(policy)
    for slot in range(slots):
        modelled.insert([slot])
    return modelled


def hit(modelled: ModelledPolicy, *slots: int) -> None:
    for slot in slots:
        modelled.access([slot])


def replace(modelled: ModelledPolicy) -> int:
    """Evict one and store another in its place; the slot."""
    (slot,) = modelled.evict(1)
    modelled.insert([slot], keys=[b"another %d" % slot])
    return slot


# What they have in common.


@pytest.mark.parametrize("name", [name for name in OPENERS if name != "W-TinyLFU"])
def test_of_one_prompt_the_end_goes_first(name: str) -> None:
    modelled = ModelledPolicy(OPENERS[name]())
    modelled.insert(range(6))
    assert modelled.victims(ALL) == [5, 4, 3, 2, 1, 0]
    modelled = ModelledPolicy(OPENERS[name]())
    modelled.insert(range(6))
    modelled.access(range(6))
    assert modelled.victims(ALL) == [5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize("name", [name for name in OPENERS if name != "IsolatedLRU"])
@pytest.mark.parametrize("steps", [1, 20])
def test_sizes_give_in_proportion_to_what_they_use(name: str, steps: int) -> None:
    modelled = ModelledPolicy(OPENERS[name]())
    for slot in range(0, 80, 2):
        modelled.insert([slot], SMALL)
        modelled.insert([slot + 1], LARGE)
    for _ in range(steps):
        modelled.evict(10 * (SMALL + LARGE) // steps)
    left = [live.slot_bytes for live in modelled.live.values()]
    assert 0 < left.count(LARGE) <= 30
    assert abs(left.count(SMALL) - left.count(LARGE)) <= 3


@pytest.mark.parametrize("name", ["LFU", "S3FIFO"])
def test_what_one_request_does_counts_once(name: str) -> None:
    modelled = ModelledPolicy(OPENERS[name]())
    modelled.insert([0], request=7)
    modelled.insert([1], request=8)
    for _ in range(5):
        modelled.access([0], request=7)
    modelled.access([1], request=9)
    modelled.access([1], request=10)
    assert modelled.victims(ALL) == [0, 1]


def test_only_what_was_evicted_leaves_a_ghost() -> None:
    evicted, cleared, hit_since = (filled(open_s3_fifo(S3FifoSettings()), 8) for _ in range(3))
    assert evicted.victims(1) == [0] == hit_since.victims(1)
    hit(hit_since, 0)
    for modelled in (evicted, cleared, hit_since):
        modelled.remove([0])
        modelled.insert([0])
        modelled.insert([10])
    assert evicted.victims(ALL) == [1, 2, 3, 4, 5, 6, 7, 10, 0]  # it came back to the main queue
    assert cleared.victims(ALL) == hit_since.victims(ALL) == [1, 2, 3, 4, 5, 6, 7, 0, 10]


# One by one.


def test_fifo_does_not_look_at_hits() -> None:
    modelled = filled(open_fifo(None), 4)
    hit(modelled, 0, 0, 1)
    assert modelled.victims(ALL) == [0, 1, 2, 3]


def test_mru_evicts_what_was_used_last() -> None:
    modelled = filled(open_mru(None), 4)
    hit(modelled, 1)
    assert modelled.victims(ALL) == [1, 3, 2, 0]


def test_noop_names_nothing() -> None:
    modelled = ModelledPolicy(open_noop(None))
    modelled.insert(range(4))
    assert modelled.victims(ALL, {SMALL: ALL}) == []


def test_lfu_counts_uses_and_breaks_ties_by_recency() -> None:
    modelled = filled(open_lfu(LfuSettings()), 4)
    hit(modelled, 0, 0, 2, 1)
    assert modelled.victims(ALL) == [3, 2, 1, 0]


def test_lfu_halves_its_counts_so_that_new_favourites_win() -> None:
    order = {}
    for halving in (0, 10):
        modelled = filled(open_lfu(LfuSettings(halving_hits_per_object=halving)), 2)
        hit(modelled, *[0] * 18)
        hit(modelled, *[1] * 12)
        hit(modelled, 0)  # goes on from what is left of its count
        order[halving] = modelled.victims(ALL)
    assert order == {0: [1, 0], 10: [0, 1]}


def test_lfu_counts_up_to_255() -> None:
    modelled = filled(open_lfu(LfuSettings(halving_hits_per_object=0)), 3)
    hit(modelled, *[0] * 300)
    hit(modelled, *[1] * 260)
    assert modelled.victims(ALL) == [2, 0, 1]


def test_slru_protects_what_was_hit_up_to_its_share() -> None:
    modelled = filled(open_slru(SlruSettings(protected_share=0.5)), 6)
    hit(modelled, 0, 1, 2)
    assert modelled.victims(ALL) == [3, 4, 5, 0, 1, 2]
    hit(modelled, 3)  # one too many: the oldest of the protected is on probation again
    assert modelled.victims(ALL) == [4, 5, 0, 1, 2, 3]


def test_sieve_spares_in_place_and_its_hand_goes_on_from_there() -> None:
    modelled = filled(open_sieve(None), 5)
    hit(modelled, 0, 2)
    assert replace(modelled) == 1  # 0 is spared
    assert replace(modelled) == 3  # the hand does not begin again at 0; 2 is spared
    assert modelled.evict(2 * SMALL) == [4, 1]  # the new object in 1 was not used, and the hand has come to it
    assert modelled.victims(ALL) == [3, 0, 2]


def test_sieve_does_not_clear_the_mark_of_what_is_held() -> None:
    modelled = filled(open_sieve(None), 3)
    hit(modelled, 0)
    modelled.held.add(0)
    assert modelled.victims(1) == [1]
    modelled.held.clear()
    modelled.held.update([1, 2])
    hit(modelled, 1, 2)
    assert modelled.victims(1) == [0]
    modelled.held.clear()
    assert modelled.victims(1) == [0]


def test_s3_fifo_moves_what_was_used_twice_to_the_main_queue() -> None:
    modelled = filled(open_s3_fifo(S3FifoSettings()), 10)
    hit(modelled, 0, 0, 1)
    assert modelled.evict(1) == [1]
    assert modelled.victims(ALL) == [2, 3, 4, 5, 6, 7, 8, 9, 0]


def test_s3_fifo_takes_an_object_that_comes_back_into_the_main_queue() -> None:
    modelled = filled(open_s3_fifo(S3FifoSettings()), 10)
    assert modelled.evict(1) == [0]
    modelled.insert([0])
    modelled.insert([10])
    assert modelled.victims(ALL) == [*range(1, 11), 0]


def test_s3_fifo_gives_the_main_queue_a_round_for_each_use() -> None:
    modelled = filled(open_s3_fifo(S3FifoSettings(promotion_hits=1)), 4)
    hit(modelled, 0, 1, 2, 3)
    assert modelled.victims(ALL) == [0, 1, 2, 3]  # all of them are in the main queue now
    hit(modelled, 0, 0, 1)
    assert modelled.victims(ALL) == [2, 3, 1, 0]


def test_arc_moves_its_border_towards_the_list_whose_ghosts_are_hit() -> None:
    table = SlotTable()
    table.columns.make_room(8)
    arc = Arc(table)
    for slot in range(8):
        arc.insert(slot, b"%d" % slot)
    for slot in range(4):
        arc.hit(slot)
    arc.remove(4, evicted=True)
    assert arc.once_target == 0
    arc.insert(4, b"4")  # a ghost of those used once
    assert arc.once_target == 1
    assert list(arc.candidates(lambda slot: True)) == [5, 6, 0, 1, 2, 3, 4, 7]
    arc.remove(0, evicted=True)
    arc.insert(0, b"0")  # a ghost of those used again
    assert arc.once_target == 0
    assert list(arc.candidates(lambda slot: True)) == [5, 6, 7, 1, 2, 3, 4, 0]
    arc.remove(1, evicted=False)
    arc.insert(1, b"1")  # not evicted, so no ghost: used once
    assert table.lists.list_of(1) == table.lists.list_of(5)


def test_arc_moves_its_border_further_the_rarer_the_ghosts_that_are_hit() -> None:
    table = SlotTable()
    table.columns.make_room(11)
    arc = Arc(table)
    for slot in range(8):
        arc.insert(slot, b"%d" % slot)
    for slot in range(6):
        arc.hit(slot)
    for slot in (0, 1, 2, 6):
        arc.remove(slot, evicted=True)
    arc.insert(6, b"6")  # one ghost of those used once, three of those used again
    assert arc.once_target == 3
    arc.insert(0, b"0")
    assert arc.once_target == 2
    for slot in (8, 9, 10):
        arc.insert(slot, b"new %d" % slot)
    for slot in (8, 9, 10):
        arc.remove(slot, evicted=True)
    arc.insert(2, b"2")  # three ghosts of those used once, two of those used again
    assert arc.once_target == 0.5


def test_w_tiny_lfu_lets_in_only_what_was_used_more() -> None:
    modelled = filled(open_w_tiny_lfu(WTinyLfuSettings()), 10)
    assert modelled.evict(1) == [8]  # it meets 0, was used as often, and was not there before
    for _ in range(3):  # the sketch knows it although it is not there
        modelled.insert([8])
        modelled.remove([8])
    modelled.insert([8])
    modelled.insert([10])  # pushes 8 out of the window
    assert modelled.evict(2 * SMALL) == [9, 0]


def test_a_policy_serves_slots_of_a_size_that_comes_later() -> None:
    modelled = filled(SizedPolicy(Arc), 3)
    modelled.insert([50], LARGE)
    assert modelled.victims(0, {LARGE: 1}) == [50]
    assert modelled.victims(1, {LARGE: 1}) == [50, 0]
