"""What must be there of a chunk, by what workers have registered."""

from __future__ import annotations

from lmcache_client.layout import ObjectLayout
from lmcache_core.contracts.request_module import ObjectGroup, SpaceFields, Worker
from lmcache_core.contracts.storage import Shard
from lmcache_core.server.registrations import registered_shards
from lmcache_devkit.module_bench import ModuleBench

FULL, WINDOW = ObjectLayout(2, 4, 16, 128, "bfloat16"), ObjectLayout(2, 12, 16, 64, "bfloat16")
HYBRID = (ObjectGroup(FULL), ObjectGroup(WINDOW, window_chunks=2))


def shards(*workers: tuple[tuple[ObjectGroup, ...], int | None]) -> list[tuple[set[bytes], set[int], int | None]]:
    """(layouts, object groups, window) of each shard that a lookup asks for in a world of one."""
    with ModuleBench() as bench:
        for number, (groups, shard) in enumerate(workers):
            bench.workers.register(Worker(100 + number, "hybrid", 1, groups, shard, inline=True))
        found = registered_shards(bench.context, SpaceFields("hybrid", ""), 1)
        return [described(shard) for shard in found]


def described(shard: Shard) -> tuple[set[bytes], set[int], int | None]:
    spaces = [stored.space for stored in shard.spaces]
    return {space.layout for space in spaces}, {space.object_group for space in spaces}, shard.window


def test_each_object_group_is_asked_for_with_its_own_window() -> None:
    assert shards((HYBRID, 0)) == [({FULL.fingerprint}, {0}, None), ({WINDOW.fingerprint}, {1}, 2)]


def test_workers_alike_ask_once() -> None:
    assert shards((HYBRID, 0), (HYBRID, 0)) == shards((HYBRID, 0))


def test_workers_that_are_known_to_differ_need_all_of_theirs() -> None:
    whole = (ObjectGroup(FULL),)
    assert shards((HYBRID, 0), (whole, 0)) == shards((HYBRID, 0)), "the first group is the same object"
    other = (ObjectGroup(WINDOW),)
    assert shards((HYBRID, 0), (other, 0)) == [*shards((HYBRID, 0)), ({WINDOW.fingerprint}, {0}, None)]


def test_where_the_shard_is_unknown_any_of_the_fullest_registrations_counts() -> None:
    wider = (ObjectGroup(WINDOW), ObjectGroup(FULL, window_chunks=3))
    both = {FULL.fingerprint, WINDOW.fingerprint}
    assert shards((HYBRID, None), (wider, None), ((ObjectGroup(FULL),), None)) == [(both, {0}, None), (both, {1}, 3)]
