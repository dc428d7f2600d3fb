"""Checksums that the admin API tells of what is cached."""

from __future__ import annotations

from core.tests.server.cache.cache_site import A, Site
from lmcache_core.model.object_header import digest


def test_checksums_are_of_the_bytes_that_were_stored(site: Site) -> None:
    site.in_both_tiers(A)
    hashes = {entry["chunk_hash"] for entry in site.operator.entries("tier=l1")}
    sums = site.operator.post("/cache/checksums", site.named([*A, *range(16)]))
    assert (sums["algorithm"], set(sums["chunk_hashes"][:4])) == ("xxh3_128", hashes)
    ((worker, checksums),) = [(shard["worker_id"], shard["checksums"]) for shard in sums["shards"]]
    expected = [digest(site.engine.content(A, chunk)).hex() for chunk in range(4)]
    assert (worker, checksums) == (0, [*expected, None])
    assert site.held() == 0
    too_many = {"model_name": "model", "chunk_hashes": [f"{number:064x}" for number in range(1025)]}
    assert site.operator.ask("POST", "/cache/checksums", too_many).code == 422
