"""The cache as a resource of the admin API: listed, deleted, prefetched, pinned, summed up; on a whole server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from core.tests.server.cache_resource import Operator, operator_of, prompt, wait_until
from core.tests.server.conftest import StartServer
from lmcache_core.admin.schemas_objects import DeletionAnswer, ObjectsPage
from lmcache_core.app.server import Server
from lmcache_core.model.object_header import digest
from lmcache_core.storage import l2_deletions
from lmcache_core.testing import free_port
from lmcache_core.testing.fake_engine import FakeEngine

A, B = prompt(1), prompt(2)
LAYOUT = {"kv_axis": 1, "layers": 2, "hidden": 64, "dtype": "float32"}
"""Of the chunks of FakeEngine."""


class Site(NamedTuple):
    server: Server
    operator: Operator
    engine: FakeEngine

    def in_both_tiers(self, *prompts: list[int]) -> None:
        for number, tokens in enumerate(prompts):
            assert self.engine.store(tokens, f"store-{number}")
            self.engine.end(f"store-{number}")
        wait_until(lambda: self.held() == 0)

    def held(self) -> int:
        return int(self.server.status()["l1"]["held"])

    def in_l2_alone(self, *prompts: list[int]) -> None:
        self.in_both_tiers(*prompts)
        self.operator.post("/cache/clear", {})
        assert self.operator.entries("tier=l1") == []

    def named(self, tokens: list[int], **more: Any) -> dict[str, Any]:
        return {"model_name": "model", "token_ids": tokens, **more}

    def finished(self, request_id: str) -> dict[str, Any]:
        def is_over() -> bool:
            return bool(self.operator.get(f"/cache/prefetches/{request_id}")["status"] != "pending")

        wait_until(is_over)
        progress: dict[str, Any] = self.operator.get(f"/cache/prefetches/{request_id}")
        return progress


@pytest.fixture
def site(start_server: StartServer) -> Iterator[Site]:
    server = start_server(http_enabled=True, http_port=free_port(), l2_adapter=({"type": "memory"},))
    operator = operator_of(server)
    with FakeEngine(server.info.engine_endpoint) as engine:
        yield Site(server, operator, engine)


# --- listing


def test_both_tiers_list_every_object_once(site: Site) -> None:
    site.in_both_tiers(A, B)
    l1, l2 = site.operator.entries("tier=l1", 3), site.operator.entries("tier=l2", 3)
    assert len(l1) == len(l2) == 8
    assert {each["key"] for each in l1} == {each["key"] for each in l2}
    assert len({each["key"] for each in l1}) == 8
    for entry in l1:
        assert entry["key"].startswith(entry["chunk_hash"])
        assert entry["state"] == "cached"
        assert entry["payload_bytes"] == site.engine.layout.payload_bytes
        assert entry["layout"] == site.engine.layout.fingerprint.hex()
        assert (entry["model_name"], entry["world_size"], entry["worker_id"]) == ("model", 1, 0)
        assert (entry["cache_salt"], entry["chunk_tokens"], entry["hash_algorithm"]) == ("_default", 16, "blake3")
    ObjectsPage.model_validate(site.operator.get("/cache/objects?tier=l1"), strict=True)


def test_older_callers_list_backends_by_another_name(site: Site) -> None:
    site.in_both_tiers(A)
    page = site.operator.get("/l2/keys?page_size=3")
    assert page == site.operator.get("/cache/objects?page_size=3")
    assert (page["tier"], page["adapter"], page["shared"], len(page["entries"])) == ("l2", "memory", False, 3)


def test_filters_choose_models_and_tenants(site: Site) -> None:
    site.in_both_tiers(A)
    with FakeEngine(site.server.info.engine_endpoint, salt="älice b", model="other") as other:
        assert other.store(B)
        other.end()
    wait_until(lambda: site.held() == 0)
    for tier in ("l1", "l2"):
        assert len(site.operator.entries(f"tier={tier}&model_name=model")) == 4
        assert len(site.operator.entries(f"tier={tier}&cache_salt=%C3%A4lice%20b")) == 4
        assert len(site.operator.entries(f"tier={tier}&cache_salt=_default")) == 4
        assert site.operator.entries(f"tier={tier}&cache_salt=_default&model_name=other") == []


@pytest.mark.parametrize(
    ("query", "code", "says"),
    [
        ("tier=l3", 422, "field 'tier' is 'l3'"),
        ("page_size=0", 422, "field 'page_size' is '0'"),
        ("page_size=5001", 422, "less than or equal to 5000"),
        ("page_token=%25%25", 422, "page_token is none of this listing; begin again without one"),
        ("page_token=" + "A" * 5000, 422, "page_token"),
        ("tier=l1&page_token=W10", 422, "page_token is none of this listing"),
        ("cache_salt=%ff", 422, "the query is not percent-encoded UTF-8"),
        ("cache_salt=a%2Fb", 422, "a cache salt holds none of"),
        ("cache_salt=a%00b", 422, "a cache salt holds none of"),
        ("adapter=nobody", 404, "no adapter is called 'nobody'; there are: memory"),
        ("salt=x", 422, "no field is called 'salt'"),
        ("tier=l1&adapter=memory", 422, "'adapter' is for the tier l2; leave it out"),
    ],
)
def test_a_wrong_query_names_what_is_wrong(site: Site, query: str, code: int, says: str) -> None:
    answer = site.operator.ask("GET", f"/cache/objects?{query}")
    assert answer.code == code
    assert says in answer.body["detail"]


def test_a_token_is_of_one_listing_and_one_start(site: Site, start_server: StartServer) -> None:
    site.in_both_tiers(A)
    token = site.operator.get("/cache/objects?tier=l1&page_size=1")["next_page_token"]
    assert site.operator.ask("GET", f"/cache/objects?tier=l2&page_token={token}").code == 422
    other = operator_of(start_server(http_enabled=True, http_port=free_port()))
    assert other.ask("GET", f"/cache/objects?tier=l1&page_token={token}").code == 422
    assert other.ask("GET", "/cache/objects").code == 404
    assert (
        other.ask("GET", "/cache/objects").body["detail"] == "this server has no L2 adapter; start it with --l2-adapter"
    )


# --- deleting


def test_single_objects_leave_one_tier(site: Site) -> None:
    site.in_both_tiers(A, B)
    keys = [entry["key"] for entry in site.operator.entries("tier=l2")][:3]
    answer = site.operator.ask("DELETE", "/cache/objects", {"keys": [*keys, "00" * 59], "tier": "l1"})
    assert answer.code == 422, "what is no key"
    answer = site.operator.ask("DELETE", "/cache/objects", {"keys": keys, "tier": "l1"})
    assert (answer.code, answer.body["deleted"], answer.body["skipped"], answer.body["ok"]) == (200, 3, 0, True)
    assert (len(site.operator.entries("tier=l1")), len(site.operator.entries("tier=l2"))) == (5, 8)
    answer = site.operator.ask("DELETE", "/cache/objects", {"keys": keys})
    assert (answer.code, answer.body["tier"], answer.body["adapter"], answer.body["deleted"]) == (
        200,
        "l2",
        "memory",
        3,
    )
    DeletionAnswer.model_validate(answer.body, strict=True)
    again = site.operator.ask("DELETE", "/cache/objects", {"keys": keys, "adapter": "memory"}).body
    assert (again["deleted"], again["missing"], again["ok"]) == (0, 3, True)
    assert len(site.operator.entries("tier=l2")) == 5


def test_what_a_request_holds_stays_until_it_is_over(site: Site) -> None:
    site.in_both_tiers(A)
    keys = [entry["key"] for entry in site.operator.entries("tier=l1")]
    assert site.engine.lookup(A) == 4
    answer = site.operator.ask("DELETE", "/cache/objects", {"keys": keys, "tier": "l1"}).body
    assert (answer["deleted"], answer["skipped"]) == (0, 4)
    assert site.engine.retrieve(A) == [site.engine.content(A, chunk) for chunk in range(4)]
    site.engine.end()
    assert site.engine.lookup(A) == 4
    answer = site.operator.ask("DELETE", "/cache/objects", {"keys": keys, "tier": "l1", "force": True}).body
    assert (answer["deleted"], answer["skipped"]) == (4, 0)
    assert {entry["state"] for entry in site.operator.entries("tier=l1")} == {"leaving"}
    site.engine.end()
    assert site.operator.entries("tier=l1") == []


def test_a_tenant_leaves_a_backend(site: Site) -> None:
    site.in_both_tiers(A)
    with FakeEngine(site.server.info.engine_endpoint, salt="alice") as alice:
        assert alice.store(B)
        alice.end()
    wait_until(lambda: site.held() == 0)
    answer = site.operator.ask("DELETE", "/l2?cache_salt=alice")
    assert (answer.code, answer.body["deleted"], answer.body["ok"]) == (200, 4, True)
    assert {entry["cache_salt"] for entry in site.operator.entries("tier=l2")} == {"_default"}
    assert len(site.operator.entries("tier=l1")) == 8, "L1 is another tier"
    keys = [entry["key"] for entry in site.operator.entries("tier=l2")]
    assert site.operator.ask("DELETE", "/l2", {"keys": keys[:1]}).body["deleted"] == 1
    assert site.operator.ask("DELETE", "/l2?everything=true").body["deleted"] == 3
    assert site.operator.entries("tier=l2") == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/l2", None),
        ("/l2?adapter=memory", None),
        ("/l2?everything=true&model_name=m", None),
        ("/l2?model_name=m", {"keys": ["00" * 60]}),
        ("/l2", {"keys": []}),
        ("/l2", {"keys": ["zz" * 60]}),
        ("/l2", {"keys": ["00" * 60] * 5001}),
        ("/l2", b"{"),
    ],
)
def test_a_deletion_says_what_it_means_in_one_way(site: Site, path: str, body: Any) -> None:
    site.in_both_tiers(A)
    assert site.operator.ask("DELETE", path, body).code in (400, 422)
    assert len(site.operator.entries("tier=l2")) == 4


def test_a_long_deletion_is_asked_for_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.in_both_tiers(A)
    monkeypatch.setattr("lmcache_core.admin.routes.objects.WAIT_SECONDS", 0.0)
    real = l2_deletions.L2Deletions._delete_slice
    go_on = threading.Event()

    def slowly(self: Any, *given: Any) -> Any:
        go_on.wait(10)
        return real(self, *given)

    monkeypatch.setattr(l2_deletions.L2Deletions, "_delete_slice", slowly)
    answer = site.operator.ask("DELETE", "/l2?everything=true")
    assert (answer.code, answer.body["status"], answer.body["ok"]) == (202, "running", False)
    assert answer.location == f"/l2/deletions/{answer.body['deletion_id']}"
    assert answer.location is not None
    assert site.operator.get(answer.location)["status"] == "running"
    busy = site.operator.ask("DELETE", "/l2?everything=true")
    assert (busy.code, "adapter 'memory' is deleting already" in busy.body["detail"]) == (409, True)
    go_on.set()
    wait_until(lambda: bool(site.operator.get(str(answer.location))["status"] == "completed"))
    assert site.operator.get(answer.location)["deleted"] == 4
    assert site.operator.ask("GET", "/l2/deletions/deletion-0").code == 404


# --- prefetching


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


def test_single_chunks_and_a_shape_that_nobody_registered(site: Site) -> None:
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


# --- pinning


def test_what_is_pinned_survives_eviction_and_clear(site: Site) -> None:
    site.in_both_tiers(A, B)
    pinned = site.operator.post("/cache/pin", site.named(A, name="system"))
    assert pinned == {"name": "system", "chunks": 4, "total_chunks": 4, "objects": 4}
    listing = site.operator.get("/cache/pins")
    (pin,) = listing["pins"]
    assert (pin["name"], pin["model_name"], pin["cache_salt"], pin["objects"]) == ("system", "model", "_default", 4)
    assert (pin["expires_in_seconds"], listing["pinned_bytes"]) == (None, pin["bytes"])
    assert listing["pinned_bytes_max"] == site.server.status()["l1"]["capacity_bytes"] // 4
    states = sorted(entry["state"] for entry in site.operator.entries("tier=l1"))
    assert states == ["cached"] * 4 + ["pinned"] * 4
    assert site.operator.post("/cache/clear", {})["cleared"]["objects_left"] == 4
    assert site.engine.lookup(A) == 4
    site.engine.end()
    assert site.operator.post("/cache/unpin", {"name": "system"})["objects"] == 4
    assert site.operator.ask("POST", "/cache/unpin", {"name": "system"}).code == 404
    assert site.operator.post("/cache/clear", {})["cleared"]["objects_left"] == 0


def test_clear_by_force_takes_pins_along(site: Site) -> None:
    site.in_both_tiers(A)
    site.operator.post("/cache/pin", site.named(A, name="system", ttl_seconds=600))
    assert 0 < site.operator.get("/cache/pins")["pins"][0]["expires_in_seconds"] <= 600
    assert site.operator.post("/cache/clear", {"force": True})["cleared"]["objects_left"] == 0
    assert site.operator.get("/cache/pins")["pins"] == []


def test_a_pin_ends_when_its_time_is_over(site: Site) -> None:
    site.in_both_tiers(A)
    site.operator.post("/cache/pin", site.named(A, name="short", ttl_seconds=0.01))
    wait_until(lambda: not site.operator.get("/cache/pins")["pins"])
    assert site.held() == 0


def test_a_prefetch_pins_what_it_brings(site: Site) -> None:
    site.in_l2_alone(A)
    answer = site.operator.ask("POST", "/cache/pin", site.named(A, name="p"))
    assert answer.code == 404
    assert "none of the 4 chunks is in L1; POST /cache/prefetches with 'pin' brings them" in answer.body["detail"]
    order = site.operator.post("/cache/prefetches", site.named(A, pin=True, name="p"), 202)
    assert site.finished(order["request_id"])["pinned_keys"] == 4
    assert [pin["objects"] for pin in site.operator.get("/cache/pins")["pins"]] == [4]
    assert site.operator.post("/cache/clear", {})["cleared"]["objects_left"] == 4


def test_less_than_a_chunk_cannot_be_pinned(site: Site) -> None:
    answer = site.operator.ask("POST", "/cache/pin", site.named(A[:15], name="p"))
    assert (answer.code, answer.body["detail"]) == (
        422,
        "what is named is less than one chunk, which has 16 tokens; name more",
    )


def test_more_than_the_setting_allows_is_a_conflict(start_server: StartServer) -> None:
    server = start_server(http_enabled=True, http_port=free_port(), l1_pin_max_ratio=0.0)
    operator = operator_of(server)
    with FakeEngine(server.info.engine_endpoint) as engine:
        assert engine.store(A)
        engine.end()
        answer = operator.ask("POST", "/cache/pin", {"model_name": "model", "token_ids": A, "name": "p"})
    assert answer.code == 409
    assert "--l1-pin-max-ratio" in answer.body["detail"]
    assert operator.get("/cache/pins") == {"pins": [], "objects": 0, "pinned_bytes": 0, "pinned_bytes_max": 0}


# --- checksums


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
