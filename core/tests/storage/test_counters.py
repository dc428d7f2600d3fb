"""Counts by model and salt: exact, bounded, and consistent whenever they are looked at."""

from __future__ import annotations

import threading
from typing import cast

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmcache_core.contracts.counts import OTHER_TENANT, TenantCounts
from lmcache_core.contracts.storage import PromptFacts
from lmcache_core.l1.leases import Lease
from lmcache_core.model.keys import HashChain, KeySpace
from lmcache_core.storage.counters import Counters, total
from lmcache_core.storage.open_lookups import Lookup

TOKENS = 16


def space(cache_salt: str) -> KeySpace:
    return KeySpace("m", 0, 0, cache_salt, TOKENS, HashChain.BLAKE3, bytes(16))


def answered(prompt: PromptFacts, hit: int, from_l2: int, objects: int, l2_objects: int) -> Lookup:
    lookup = Lookup(b"", "r", cast(Lease, None), 1, 0.0, prompt.chunks, False, prompt, TOKENS, 1)
    lookup.hit_chunks, lookup.l2_chunks = hit, from_l2
    lookup.held_objects, lookup.l2_objects = objects, l2_objects
    return lookup


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 15)), max_size=20))
def test_what_is_hit_and_what_is_missed_is_what_was_requested(answers: list[tuple[int, int, int, int]]) -> None:
    counters, tokens = Counters(), TOKENS
    for from_l1, from_l2, missed, rest in answers:
        requested = from_l1 + from_l2 + missed
        hit = from_l1 + from_l2
        prompt = PromptFacts("m", "s", 2, requested * tokens + rest, requested)
        counters.answered(answered(prompt, hit, from_l2, 2 * hit, from_l2), 0.001)
    rows = counters.snapshot()
    whole = total(rows)
    assert whole.lookups == len(answers)
    assert whole.hit_l1_chunks == sum(from_l1 for from_l1, *_ in answers)
    assert whole.missed_chunks == sum(missed for *_, missed, _ in answers)
    assert whole.missed_tokens == sum(missed * tokens + rest for *_, missed, rest in answers)
    assert whole.hit_l1_objects + whole.hit_l2_objects == 2 * whole.hit_chunks


def test_pairs_beyond_the_bound_are_counted_together() -> None:
    counters = Counters(pairs_max=3)
    for number in range(10):
        counters.stored(space(f"salt-{number}"), 2, 100)
    counters.stored(space("salt-0"), 1, 50)
    rows = counters.snapshot()
    assert set(rows) == {("m", "salt-0"), ("m", "salt-1"), ("m", "salt-2"), (OTHER_TENANT, OTHER_TENANT)}
    assert rows["m", "salt-0"].stored_chunks == 3
    assert (rows[OTHER_TENANT, OTHER_TENANT].stored_chunks, total(rows).stored_bytes) == (14, 1050)


def test_a_snapshot_is_a_copy() -> None:
    counters = Counters()
    counters.refused(space(""), 1, 10, "quota")
    before = counters.snapshot()
    counters.refused(space(""), 1, 10, "quota")
    counters.refused(space(""), 5, 50, "no_room")
    assert before["m", ""].refused_chunks == {"quota": 1}
    assert counters.snapshot()["m", ""].refused_chunks == {"quota": 2, "no_room": 5}


def test_an_empty_total_is_all_zero() -> None:
    assert total({}) == TenantCounts()


def test_each_row_of_a_snapshot_is_of_one_moment() -> None:
    counters, stop = Counters(), threading.Event()

    def count(number: int) -> None:
        for turn in range(2000):
            prompt = PromptFacts("m", f"s{turn % 3}", 1, 70, 4)
            counters.answered(answered(prompt, number, number // 2, number, 0), 0.001)
        stop.set()

    threads = [threading.Thread(target=count, args=(number,)) for number in (1, 2, 4)]
    for thread in threads:
        thread.start()
    while not stop.is_set():
        for row in counters.snapshot().values():
            assert (row.requested_chunks, row.requested_tokens) == (4 * row.lookups, 70 * row.lookups)
            assert row.hit_tokens == 16 * row.hit_chunks
            assert row.hit_l1_objects == row.hit_chunks
            assert sum(times.total for times in row.lookup_times.values()) == row.lookups
    for thread in threads:
        thread.join()
    assert total(counters.snapshot()).lookups == 6000
    assert total(counters.snapshot()).requested_chunks == 24_000
