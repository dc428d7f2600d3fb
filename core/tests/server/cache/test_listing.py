"""What is cached, listed by the admin API: by tier, in pages, filtered."""

from __future__ import annotations

import pytest

from core.tests.server.cache.cache_site import A, B, Site
from core.tests.server.cache_resource import operator_of, wait_until
from core.tests.server.conftest import StartServer
from lmcache_core import HEADER_BYTES
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine
from lmcache_http.admin_api.objects import ObjectsPage


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
    stored_bytes = HEADER_BYTES + site.engine.layout.payload_bytes
    assert [each["stored_bytes"] for each in page["entries"]] == [stored_bytes] * 3


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
        ("page_token=%25%25", 422, "page_token is none of this listing; begin again without one"),
        ("page_token=" + "A" * 5000, 422, "page_token"),
        ("tier=l1&page_token=W10", 422, "page_token is none of this listing"),
        ("cache_salt=%ff", 422, "the query is not percent-encoded UTF-8"),
        ("cache_salt=a%2Fb", 422, "a cache salt holds none of"),
        ("cache_salt=a%00b", 422, "a cache salt holds none of"),
        ("adapter=absent", 404, "no adapter is called 'absent'; there are: memory"),
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


def test_a_page_larger_than_the_largest_is_the_largest(site: Site) -> None:
    """As clients of other servers ask for it."""
    site.in_both_tiers(A)
    for path in ("/l2/keys", "/cache/objects"):
        for size in (5001, 10**21):
            answer = site.operator.ask("GET", f"{path}?page_size={size}")
            assert answer.code == 200
            assert answer.body["entries"]
