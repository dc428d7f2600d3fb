"""The fleet benchmark's keys and subjects: each finds what was reported to it, and nothing of what left."""

from __future__ import annotations

import pytest

from benchmarks.fleet import keys
from benchmarks.fleet.measure import subject
from benchmarks.fleet.ours import Ours

INSTANCES, CHUNKS, COMMON = 4, 200, 100


def test_hashes_are_the_same_each_time_and_shared_where_they_are_to_be() -> None:
    one, other = (keys.hashes(instance, 0, CHUNKS, COMMON) for instance in (1, 2))
    assert one[: COMMON * keys.HASH_BYTES] == other[: COMMON * keys.HASH_BYTES]
    mine, theirs = (set(keys.integers(each)[COMMON:]) for each in (one, other))
    assert len(mine) == len(theirs) == CHUNKS - COMMON
    assert not mine & theirs
    assert keys.hashes(1, 50, 10, COMMON) == one[50 * keys.HASH_BYTES : 60 * keys.HASH_BYTES]


@pytest.mark.parametrize("name", ["native", "pure", "S0", "S1", "S2"])
def test_a_subject_finds_what_was_reported_until_its_instance_leaves(name: str) -> None:
    if name == "native":
        pytest.importorskip("lmcache_native._fleet")
    it = subject(name)
    reports = {instance: keys.hashes(instance, 0, CHUNKS, 0) for instance in range(1, INSTANCES + 1)}
    for instance, hashes in reports.items():
        it.report(instance, it.prepared(instance, hashes))
    for hashes in reports.values():
        assert it.found(it.prepared(keys.COMMON, hashes)) == CHUNKS
    it.deregister(1)
    assert it.found(it.prepared(keys.COMMON, reports[1])) == 0
    assert it.found(it.prepared(keys.COMMON, reports[2])) == CHUNKS


@pytest.mark.parametrize("name", ["native", "pure"])
def test_prefixes_are_those_of_all_instances(name: str) -> None:
    if name == "native":
        pytest.importorskip("lmcache_native._fleet")
    it: Ours = subject(name)
    for instance in range(1, INSTANCES + 1):
        it.report(instance, keys.hashes(instance, 0, CHUNKS, COMMON))
    assert it.prefixes(keys.hashes(1, 0, CHUNKS, COMMON)) == INSTANCES
    assert it.prefixes(keys.hashes(1, COMMON, CHUNKS - COMMON, COMMON)) == 1
    it.deregister(2)
    while it.sweep():
        pass
    assert it.prefixes(keys.hashes(1, 0, CHUNKS, COMMON)) == INSTANCES - 1
