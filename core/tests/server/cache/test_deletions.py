"""What is cached, deleted by an operator: what leaves, what stays, and what is refused."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from core.tests.server.cache.cache_site import A, B, Site
from core.tests.server.cache_resource import wait_until
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_devkit.fake_engine import FakeEngine
from lmcache_http.admin_api.objects import DeletionAnswer


def test_single_objects_leave_one_tier(site: Site) -> None:
    site.in_both_tiers(A, B)
    keys = [entry["key"] for entry in site.operator.entries("tier=l2")][:3]
    answer = site.operator.ask("DELETE", "/cache/objects", {"keys": [*keys, "00" * 59], "tier": "l1"})
    assert answer.code == 422, "what is not a key"
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
    monkeypatch.setattr("lmcache_admin.routes.objects.WAIT_SECONDS", 0.0)
    real = AdapterClient.delete
    go_on = threading.Event()

    def slowly(self: Any, *given: Any) -> Any:
        go_on.wait(10)
        return real(self, *given)

    monkeypatch.setattr(AdapterClient, "delete", slowly)
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
