"""Who reaches the dashboard and its figures: tokens, web pages of other sites, and other names of this machine."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest

from plugins.coordinator.tests.coordinator_process import CoordinatorProcess

FULL, READ, MEMBER = "a-token-of-the-test", "a-second-token-of-the-test", "a-third-token-of-the-test"
PAGE_FILES = ("/dashboard", "/dashboard/dashboard.css", "/dashboard/dashboard.js")
DATA = ("/dashboard/data", "/dashboard/instances/server-1", "/conditions", "/metrics")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    folder = tmp_path_factory.mktemp("guarded")
    tokens = folder / "tokens"
    tokens.write_text(f"{FULL}\n{READ} read\n{MEMBER} member\n")
    tokens.chmod(0o600)
    with CoordinatorProcess(folder, "--token-file", str(tokens)) as running:
        assert running.ask("POST", "/instances", {"instance_id": "server-1"}, bearer(MEMBER)).status == 200
        yield running


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    with CoordinatorProcess(tmp_path_factory.mktemp("local")) as running:
        assert running.ask("POST", "/instances", {"instance_id": "server-1"}).status == 200
        yield running


@pytest.mark.parametrize("path", PAGE_FILES)
def test_the_page_is_open_runs_its_own_files_alone_and_has_no_figures(guarded: CoordinatorProcess, path: str) -> None:
    with urllib.request.urlopen(guarded.url + path, timeout=10) as answer:
        policy, body = answer.headers["Content-Security-Policy"], answer.read()
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert b"server-1" not in body


@pytest.mark.parametrize("path", DATA)
def test_figures_need_a_token_that_may_read(guarded: CoordinatorProcess, path: str) -> None:
    statuses = [guarded.ask("GET", path, headers=each).status for each in ({}, bearer("x"), bearer(MEMBER))]
    assert statuses == [401, 401, 403]
    assert [guarded.ask("GET", path, headers=bearer(each)).status for each in (READ, FULL)] == [200, 200]


def test_only_a_full_token_removes_a_server(guarded: CoordinatorProcess) -> None:
    path = "/fleet/instances/server-1"
    assert [guarded.ask("DELETE", path, headers=bearer(each)).status for each in (READ, MEMBER)] == [403, 403]
    assert guarded.ask("DELETE", path, headers=bearer(FULL)).body == {"instance_id": "server-1", "status": "removed"}
    assert guarded.ask("DELETE", path, headers=bearer(FULL)).status == 404


def test_a_page_of_another_site_removes_nothing_and_reads_nothing(local: CoordinatorProcess) -> None:
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
        assert local.ask("DELETE", "/fleet/instances/server-1", headers=headers).status == 403
    assert local.ask("GET", "/dashboard/data", headers={"Host": "evil.example"}).status == 421
    assert len(local.ask("GET", "/instances").body["instances"]) == 1


def test_an_instance_that_is_not_there_is_a_problem(local: CoordinatorProcess) -> None:
    for method, path in (("GET", "/dashboard/instances/x"), ("DELETE", "/fleet/instances/x")):
        status, body = local.ask(method, path)
        assert (status, body["detail"]) == (404, "instance 'x' is not registered")
