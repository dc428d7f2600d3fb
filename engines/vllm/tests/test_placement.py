from __future__ import annotations

import pytest

from lmcache_vllm.placement import CacheGroup, Placement, block_span


def test_every_worker_has_a_shard_of_its_own() -> None:
    places = [Placement.of("m", 2, 2, rank, mla=False) for rank in range(4)]
    assert [place.worker_id for place in places] == [0, 1, 2, 3]
    assert {(place.world_size, place.readers, place.writes) for place in places} == {(4, 1, True)}


def test_latent_attention_has_one_shard_for_each_pipeline_stage() -> None:
    places = [Placement.of("m", 4, 2, rank, mla=True) for rank in range(8)]
    assert [place.worker_id for place in places] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [place.writes for place in places] == [True, False, False, False] * 2
    assert {(place.world_size, place.readers) for place in places} == {(2, 4)}


def test_a_rank_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="rank 2 is not one of 2"):
        Placement.of("m", 2, 1, 2, mla=False)


def test_blocks_of_all_groups_end_together() -> None:
    assert block_span((CacheGroup(("a",), 16), CacheGroup(("b",), 24))) == 48
