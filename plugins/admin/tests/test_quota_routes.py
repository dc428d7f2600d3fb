"""`/quota`: its shapes, names of salts, and what it says to mistakes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmcache_admin.service import AdminService
from lmcache_http.openapi import BODY_BYTES_MAX
from plugins.admin.tests.conversation import ask, running
from plugins.admin.tests.stand_ins import StandInQuotas

GIB = 2**30


@pytest.fixture(scope="module")
def quotas() -> StandInQuotas:
    return StandInQuotas()


@pytest.fixture(scope="module")
def api(quotas: StandInQuotas) -> Iterator[AdminService]:
    with running(quotas=quotas) as server:
        yield server


@pytest.fixture(autouse=True)
def fresh(quotas: StandInQuotas) -> None:
    quotas.__init__()  # type: ignore[misc]


def test_set_get_list_delete(api: AdminService, quotas: StandInQuotas) -> None:
    quotas.used = {"tenant-a": GIB // 2 + 1, "": 4096}
    assert ask(api, "/quota/tenant-a", "PUT", {"limit_gb": 2.5})[:3] == (
        200,
        "application/json",
        {"cache_salt": "tenant-a", "limit_gb": 2.5, "status": "ok"},
    )
    assert quotas.limits == {"tenant-a": 5 * GIB // 2}
    use = {
        "limit_gb": 2.5,
        "current_usage_gb": 0.500000001,
        "limit_bytes": 5 * GIB // 2,
        "current_usage_bytes": GIB // 2 + 1,
    }
    assert ask(api, "/quota/tenant-a").body == {"cache_salt": "tenant-a", "exists": True, **use}
    without = {"limit_gb": None, "current_usage_gb": 0.000003815, "limit_bytes": None, "current_usage_bytes": 4096}
    assert ask(api, "/quota").body == {"users": {"_default": without, "tenant-a": use}, "default_limit_gb": None}
    assert ask(api, "/quota/tenant-a", "DELETE")[:3] == (
        200,
        "application/json",
        {"cache_salt": "tenant-a", "status": "removed"},
    )
    gone = ask(api, "/quota/tenant-a", "DELETE")
    assert (gone.code, gone.kind) == (404, "application/problem+json")
    assert gone.body["detail"] == "cache salt 'tenant-a' has no quota of its own; GET /quota lists those that do"


def test_the_empty_salt_is_called_default(api: AdminService, quotas: StandInQuotas) -> None:
    assert ask(api, "/quota/_default", "PUT", {"limit_gb": 1}).body["cache_salt"] == "_default"
    assert quotas.limits == {"": GIB}
    assert ask(api, "/quota/_default").body["cache_salt"] == "_default"
    assert ask(api, "/quota/_default", "DELETE").code == 200
    assert quotas.limits == {}


def test_a_salt_without_a_quota_has_the_default_one(api: AdminService, quotas: StandInQuotas) -> None:
    quotas.default_bytes = 0
    answer = ask(api, "/quota/unknown").body
    assert (answer["exists"], answer["limit_gb"], answer["limit_bytes"]) == (False, 0.0, 0)
    assert ask(api, "/quota").body == {"users": {}, "default_limit_gb": 0.0}


salts = st.text(st.characters(codec="utf-8", exclude_characters="@/\\\0"), min_size=1, max_size=128).filter(
    lambda salt: salt != "_default"
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(salts)
def test_any_salt_can_be_named(api: AdminService, quotas: StandInQuotas, salt: str) -> None:
    quotas.limits.clear()
    path = f"/quota/{quote(salt, safe='')}"
    assert ask(api, path, "PUT", {"limit_gb": 0}).body["cache_salt"] == salt
    assert quotas.limits == {salt: 0}
    assert ask(api, path).body["exists"]
    assert ask(api, path, "DELETE").code == 200


@pytest.mark.parametrize(
    ("path", "code", "says"),
    [
        ("a%40b", 422, "cache_salt: a cache salt holds none of @ / \\ and NUL, this one '@'"),
        ("a%5Cb", 422, "cache_salt: a cache salt holds none of @ / \\ and NUL, this one '\\\\'"),
        ("a%00b", 422, "cache_salt: a cache salt holds none of @ / \\ and NUL, this one '\\x00'"),
        ("a%ffb", 422, "the path is not percent-encoded UTF-8"),
        ("x" * 129, 422, "cache_salt: a cache salt has at most 128 characters, this one 129"),
        ("a%2Fb", 404, "Not Found"),
        ("a/b", 404, "Not Found"),
        ("a/", 422, "cache_salt: the empty salt is written _default"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_what_is_not_a_salt(
    api: AdminService, quotas: StandInQuotas, method: str, path: str, code: int, says: str
) -> None:
    answer = ask(api, f"/quota/{path}", method, {"limit_gb": 1} if method == "PUT" else None)
    assert (answer.code, answer.kind, answer.body["detail"]) == (code, "application/problem+json", says)
    assert quotas.limits == {}


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (b"", 400, "the body is not JSON: "),
        (b"{", 400, "the body is not JSON: "),
        (b"[" * 60_000, 400, "the body is not JSON: "),
        (b'{"limit_gb": NaN}', 400, "the body is not JSON: "),
        ([], 422, "the body is not a JSON object; its fields are: limit_gb"),
        ({}, 422, "field 'limit_gb' is required"),
        ({"limit_gb": "much"}, 422, "field 'limit_gb' is 'much': input should be a valid number"),
        ({"limit_gb": True}, 422, "field 'limit_gb' is True: input should be a valid number"),
        ({"limit_gb": None}, 422, "field 'limit_gb' is None: input should be a valid number"),
        ({"limit_gb": -0.5}, 422, "field 'limit_gb' is -0.5: input should be greater than or equal to 0"),
        ({"limit_gb": 1e300}, 422, "field 'limit_gb' is 1e+300: input should be less than or equal to 1073741824"),
        ({"limit_gb": 10**400}, 422, "field 'limit_gb' is 1"),
        ({"limit_gb": 1, "limt": 2}, 422, "no field is called 'limt'; did you mean 'limit_gb'?"),
        (b'{"limit_gb": 1, "x": "' + b"y" * BODY_BYTES_MAX + b'"}', 413, "Request Entity Too Large"),
    ],
)
def test_mistakes_in_the_body(api: AdminService, quotas: StandInQuotas, body: Any, code: int, says: str) -> None:
    answer = ask(api, "/quota/a", "PUT", body)
    assert (answer.code, answer.kind) == (code, "application/problem+json")
    assert answer.body["detail"].startswith(says)
    assert quotas.limits == {}


def test_a_server_that_can_keep_no_quota_says_what_to_do(api: AdminService, quotas: StandInQuotas) -> None:
    quotas.refusal = "start the server with --eviction-policy IsolatedLRU"
    answer = ask(api, "/quota/a", "PUT", {"limit_gb": 1})
    assert (answer.code, answer.kind, answer.body["detail"]) == (409, "application/problem+json", quotas.refusal)
    assert answer.body["title"] == "Conflict"


def test_ports_may_block_without_holding_up_other_answers() -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow(StandInQuotas):
        def set(self, salt: str, limit_bytes: int) -> None:
            entered.set()
            assert leave.wait(10)
            super().set(salt, limit_bytes)

    slow = Slow()
    with running(quotas=slow) as server:
        setting = threading.Thread(target=ask, args=(server, "/quota/a", "PUT", {"limit_gb": 1}))
        setting.start()
        assert entered.wait(10)
        assert ask(server, "/healthcheck").code == 200
        leave.set()
        setting.join(10)
    assert slow.limits == {"a": GIB}
