"""The coordinator's dashboard in a real browser: what it shows, what it lets people do, and what it does not do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmcache_core import HashChain, KeySpace
from lmcache_fleet.messages import JournalPage, Kind, Run, encode
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess
from tests.observability.browser import CHROMIUM, CONTRAST, UNNAMED, browser

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")

HOSTILE = '<img src=x onerror="document.title=1">'
TOKEN, READS = "a-token-of-the-test", "another-token-of-the-test"
PHONE = 390
GIB = 2**30


def fill(coordinator: CoordinatorProcess, headers: dict[str, str] | None = None) -> None:
    """Three servers, one of them with a name that is markup, and tenants."""

    def ask(method: str, path: str, body: Any, more: dict[str, str] | None = None) -> None:
        answer = coordinator.ask(method, path, body, {**(headers or {}), **(more or {})})
        assert answer.status in (200, 201), answer

    for number, name in enumerate(("server-1", "server-2", HOSTILE)):
        about = {"instance_id": name, "ip": f"10.0.0.{number}", "http_port": 8080, "mq_port": 5555, "incarnation": "1"}
        ask("POST", "/instances", {**about, "metadata": {"version": HOSTILE, "password": "hunter2-of-the-test"}})
        for source, keys, size in (("l1", 40 * (number + 1), 1 << 20), ("redis", 20, 1 << 20)):
            salt = ("user-a", "user-b", HOSTILE)[number]
            space = KeySpace("m", 0, 0, salt, 256, HashChain.BLAKE3, bytes(16))
            hashes = b"".join(bytes([number, each]) * 16 for each in range(keys))
            page = JournalPage(
                instance=name,
                incarnation="1",
                source=source,
                backend="" if source == "l1" else "redis",
                shared=source == "redis",
                spaces=(space.tail,),
                runs=(Run(Kind.STORE, 0, size, hashes),),
                first=0,
            )
            ask("POST", "/fleet/journal", encode(page), {"Content-Type": "application/msgpack"})
    ask("PUT", "/l2/quota/user-a", {"limit_gb": 1.0})
    ask("PUT", "/l2/quota/_default", {"limit_gb": 2.0})


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    flags = ("--eviction-check-interval", "0", "--instance-timeout", "600")
    with CoordinatorProcess(tmp_path_factory.mktemp("dashboard"), *flags) as running:
        fill(running)
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as running:
        yield running


def opened(chromium: Browser, coordinator: CoordinatorProcess, **how: Any) -> Iterator[Page]:
    """Whatever the page complains of fails the test, and so does a request to another host."""
    complaints: list[str] = []
    hosts: set[str] = set()
    context = chromium.new_context(**how)
    page = context.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: hosts.add(request.url.partition("//")[2].partition("/")[0]))
    page.goto(f"{coordinator.url}/dashboard")
    expect(page.locator("#instance-table tbody tr")).to_have_count(3)
    yield page
    context.close()
    assert complaints == []
    assert hosts - {""} == {coordinator.url.removeprefix("http://")}


@pytest.fixture
def page(chromium: Browser, coordinator: CoordinatorProcess) -> Iterator[Page]:
    yield from opened(chromium, coordinator, viewport={"width": 1280, "height": 900})


def test_it_shows_the_fleet_and_names_are_text(page: Page) -> None:
    expect(page.locator("#about")).to_contain_text("3 servers")
    expect(page.locator("#about")).to_contain_text("it evicts", timeout=20_000)
    expect(page.locator("#figures")).to_contain_text("300keys in the directory")
    expect(page.locator("#instance-table tbody tr").first).to_contain_text("10.0.0.0:8080")
    expect(page.locator("#instance-table")).to_contain_text(HOSTILE)
    expect(page.locator("#tenant-table")).to_contain_text(HOSTILE)
    row = page.locator("#tenant-table tbody tr", has_text="user-a")
    expect(row).to_contain_text("1.00 GiB")
    expect(row).to_contain_text("20.0 MiB")
    expect(page.locator("#worker-table tbody tr")).to_have_count(3)
    expect(page.locator("#metric-table tbody tr", has_text="lmcache_coordinator_instances").first).to_contain_text("3")
    expect(page.locator("#thread-table")).to_contain_text("coordinator-http")
    expect(page.locator("#garbage-table tbody tr")).to_have_count(3)
    expect(page.locator("#setting-table")).to_contain_text("instance_timeout")
    page.get_by_role("button", name="View server-1", exact=True).click()
    expect(page.locator("#view-body")).to_contain_text('"p2p_advertised_url"')
    assert page.title() == "Fleet"
    assert "hunter2" not in page.content()


def test_an_operator_removes_a_server(page: Page, coordinator: CoordinatorProcess) -> None:
    page.get_by_role("button", name="Remove server-2", exact=True).click()
    page.locator("#remove").get_by_role("button", name="Cancel").click()
    expect(page.locator("#remove")).to_be_hidden()
    assert len(coordinator.ask("GET", "/instances").body["instances"]) == 3
    page.get_by_role("button", name=f"Remove {HOSTILE}", exact=True).click()
    page.locator("#remove").get_by_role("button", name="Remove").click()
    expect(page.locator("#instance-table tbody tr")).to_have_count(2)
    assert [each["instance_id"] for each in coordinator.ask("GET", "/instances").body["instances"]] == [
        "server-1",
        "server-2",
    ]
    fill(coordinator)  # as it was


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, PHONE])
def test_it_can_be_read_in_the_dark_and_on_a_phone(
    chromium: Browser, coordinator: CoordinatorProcess, scheme: str, width: int
) -> None:
    for page in opened(chromium, coordinator, viewport={"width": width, "height": 844}, color_scheme=scheme):
        assert page.evaluate(CONTRAST) == []
        assert page.evaluate(UNNAMED) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"


def test_a_token_is_asked_for_and_kept_in_memory_alone(chromium: Browser, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n{READS} read\n")
    tokens.chmod(0o600)
    with CoordinatorProcess(tmp_path, "--token-file", str(tokens)) as coordinator:
        fill(coordinator, {"Authorization": f"Bearer {TOKEN}"})
        page = chromium.new_page()
        page.goto(f"{coordinator.url}/dashboard")
        for token in ("wrong", READS):
            page.locator("#token").fill(token)
            page.keyboard.press("Enter")
        expect(page.locator("#instance-table tbody tr")).to_have_count(3)
        assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
        page.get_by_role("button", name="Remove server-1", exact=True).click()
        page.locator("#remove").get_by_role("button", name="Remove").click()
        expect(page.locator("#problem")).to_contain_text("server-1 was not removed")
        expect(page.locator("#instance-table tbody tr")).to_have_count(3)
        page.reload()
        expect(page.locator("#login")).to_be_visible()
        page.close()
