"""Prompts that an operator has brought to L1 before anybody asks."""

from __future__ import annotations

from typing import Any

import pytest

from core.tests.server.cache.cache_site import A, Site
from core.tests.server.cache_resource import operator_of, wait_until
from core.tests.server.conftest import StartServer
from lmcache_core.model.object_header import digest
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine

LAYOUT = {"kv_axis": 1, "layers": 2, "hidden": 64, "dtype": "float32", "block_slots": 16}
"""Of the chunks of FakeEngine."""


def test_a_prompt_comes_to_l1_before_anybody_asks_and_stays(site: Site) -> None:
    site.in_l2_alone(A)
    answer = site.operator.ask("POST", "/cache/prefetches", site.named(A))
    assert (answer.code, answer.body["chunks"], answer.body["status"]) == (202, 4, "submitted")
    assert answer.location == f"/cache/prefetches/{answer.body['request_id']}"
    done = site.finished(answer.body["request_id"])
    assert (done["status"], done["found_keys"], done["total_keys"], done["loaded_keys"]) == ("completed", 4, 4, 4)
    assert [entry["state"] for entry in site.operator.entries("tier=l1")] == ["cached"] * 4
    assert site.engine.lookup(A) == 4
    assert site.server.status()["chunks"]["loaded_from_l2"] == 0, "nothing was left for the lookup to load"
    assert site.engine.retrieve(A) == [site.engine.content(A, chunk) for chunk in range(4)]
    site.engine.end()


def test_single_chunks_and_a_shape_that_is_not_registered(site: Site) -> None:
    site.in_l2_alone(A)
    hashes = [entry["chunk_hash"] for entry in site.operator.entries("tier=l2")]
    by_hash = {"model_name": "model", "chunk_hashes": hashes[:2]}
    done = site.finished(site.operator.post("/cache/prefetches", by_hash, 202)["request_id"])
    assert (done["found_keys"], done["total_keys"]) == (2, 2)
    wrong = {**by_hash, "model_name": "unheard-of"}
    answer = site.operator.ask("POST", "/cache/prefetches", wrong)
    assert answer.code == 409
    assert "no worker of model 'unheard-of' with a world size of 1 is registered" in answer.body["detail"]
    done = site.finished(site.operator.post("/cache/prefetches", {**wrong, "layout": LAYOUT}, 202)["request_id"])
    assert (done["found_keys"], done["total_keys"]) == (0, 2)
    shaped = {**by_hash, "chunk_hashes": hashes, "layout": LAYOUT}
    done = site.finished(site.operator.post("/cache/prefetches", shaped, 202)["request_id"])
    assert (done["found_keys"], done["total_keys"]) == (4, 4)


def test_every_shard_of_a_chunk_is_meant(site: Site) -> None:
    endpoint = site.server.info.engine_endpoint
    with (
        FakeEngine(endpoint, model="wide", world_size=2) as first,
        FakeEngine(endpoint, model="wide", world_size=2, worker_id=1) as second,
    ):
        for worker in (first, second):
            assert worker.store(A)
        first.end()
        wait_until(lambda: site.held() == 0)
        site.operator.post("/cache/clear", {})
        wide = {"model_name": "wide", "world_size": 2, "token_ids": A}
        done = site.finished(site.operator.post("/cache/prefetches", wide, 202)["request_id"])
        assert (done["chunks"], done["found_keys"], done["total_keys"]) == (4, 8, 8)
        assert site.operator.post("/cache/pin", {**wide, "name": "p"})["objects"] == 8
        shards = site.operator.post("/cache/checksums", wide)["shards"]
        for worker, shard in zip((first, second), shards, strict=True):
            assert shard["checksums"] == [digest(worker.content(A, chunk)).hex() for chunk in range(4)]
        assert [shard["worker_id"] for shard in shards] == [0, 1]
        assert first.lookup(A, "later") == 4


def test_less_than_a_chunk_is_nothing_to_bring(site: Site) -> None:
    assert site.operator.post("/cache/prefetches", site.named(A[:15]), 202) == {
        "request_id": None,
        "chunks": 0,
        "status": "noop",
    }
    assert site.operator.ask("GET", "/cache/prefetches/prefetch-0").code == 404
    assert site.operator.ask("DELETE", "/cache/prefetches/prefetch-0").code == 404


def test_a_prefetch_that_has_ended_stays_as_it_is(site: Site) -> None:
    site.in_l2_alone(A)
    request_id = site.operator.post("/cache/prefetches", site.named(A), 202)["request_id"]
    site.finished(request_id)
    answer = site.operator.ask("DELETE", f"/cache/prefetches/{request_id}")
    assert (answer.code, answer.body["status"]) == (200, "completed")


def test_without_a_backend_there_is_nothing_to_bring_from(start_server: StartServer) -> None:
    server = start_server(http_enabled=True, http_port=free_port())
    operator = operator_of(server)
    with FakeEngine(server.info.engine_endpoint):
        answer = operator.ask("POST", "/cache/prefetches", {"model_name": "model", "token_ids": A})
    assert (answer.code, answer.body["detail"]) == (409, "this server has no L2 adapter; start it with --l2-adapter")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"token_ids": None}, "give exactly one of 'token_ids' and 'chunk_hashes'"),
        ({"chunk_hashes": ["00" * 32]}, "give exactly one of 'token_ids' and 'chunk_hashes'"),
        ({"token_ids": [1, -1]}, "field 'token_ids.1'"),
        ({"token_ids": [2**32]}, "field 'token_ids.0'"),
        ({"token_ids": [1.5]}, "field 'token_ids.0'"),
        ({"token_ids": [0] * 262_145}, "at most 262144 items"),
        ({"token_ids": None, "chunk_hashes": ["00" * 31]}, "field 'chunk_hashes.0'"),
        ({"world_size": 0}, "field 'world_size' is 0"),
        ({"world_size": 256}, "field 'world_size' is 256"),
        ({"model_name": ""}, "field 'model_name'"),
        ({"model_name": "m" * 1025}, "field 'model_name'"),
        ({"cache_salt": "a/b"}, "a cache salt holds none of"),
        ({"cache_salt": "a" * 129}, "field 'cache_salt'"),
        ({"pin": True}, "'pin' and 'name' belong together"),
        ({"pin": True, "name": "a b"}, "field 'name'"),
        ({"ttl_seconds": 5}, "'ttl_seconds' is that of a pin: give 'pin' and 'name', too, or leave it out"),
        ({"source_tier": "l1"}, "field 'source_tier' is 'l1'"),
        ({"tokens": []}, "no field is called 'tokens'"),
        ({"layout": {**LAYOUT, "dtype": "float7"}}, "dtype 'float7' is not one"),
        ({"layout": LAYOUT, "model_name": "\u00e4" * 1024}, "use a shorter model name or salt"),
    ],
)
def test_a_wrong_order_names_what_is_wrong(site: Site, change: dict[str, Any], says: str) -> None:
    answer = site.operator.ask("POST", "/cache/prefetches", {**site.named(A), **change})
    assert answer.code == 422
    assert says in answer.body["detail"]
    assert len(answer.body["detail"]) < 1000
