"""What an operator pins stays in L1: as much as the setting allows, for as long as it was asked for."""

from __future__ import annotations

from core.tests.server.cache.cache_site import A, B, Site
from core.tests.server.cache_resource import operator_of, wait_until
from core.tests.server.conftest import StartServer
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine


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
