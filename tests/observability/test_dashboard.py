"""The dashboard of a real server in a real browser: what it shows, who can use it, and what it does not do."""

from __future__ import annotations

import json
import random
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.server_process import ServerProcess
from lmcache_devkit.fake_engine import FakeEngine
from tests.observability.browser import CHROMIUM, CONTRAST, UNNAMED, browser

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")

HOSTILE = '<img src=x onerror="document.title=1">'
TOKEN = "a-token-of-the-test"
PHONE = 390


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("dashboard")
    adapter = json.dumps({"type": "fs", "base_path": str(home / "objects"), "max_capacity_gb": 1})
    options = ["--l1-size-gb", "0.1", "--prometheus-port", "0", "--l2-adapter", adapter]
    with ServerProcess(options, home / "server.log") as running:
        _work(f"tcp://127.0.0.1:{running.port}")
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as running:
        yield running


@pytest.fixture
def page(chromium: Browser, server: ServerProcess) -> Iterator[Page]:
    """The dashboard with its first figures.  Whatever the page complains of fails the test."""
    yield from _opened(chromium, server, viewport={"width": 1280, "height": 900})


def _opened(chromium: Browser, server: ServerProcess, **how: Any) -> Iterator[Page]:
    complaints: list[str] = []
    context = chromium.new_context(**how)
    opened = context.new_page()
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("requestfailed", lambda request: complaints.append(f"{request.url} {request.failure}"))
    # a page that is left while it loads its icon gives that up
    icon = f"{_url(server)}/icon.svg net::ERR_ABORTED"
    hosts: set[str] = set()
    opened.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    opened.goto(_url(server))
    expect(opened.locator("#tenant-table tbody tr").first).to_be_visible()
    yield opened
    context.close()
    assert [each for each in complaints if each != icon] == []
    assert hosts == {f"127.0.0.1:{server.http_port}"}, "the page asks another host"


def _url(server: ServerProcess) -> str:
    """Of the page, which comes up a moment after the engine port."""
    url = f"http://127.0.0.1:{server.http_port}/dashboard"
    deadline = time.monotonic() + 30
    while True:
        try:
            urllib.request.urlopen(url, timeout=10).close()
        except OSError:
            assert time.monotonic() < deadline, "the admin API did not come up"
            time.sleep(0.1)
        else:
            return url


def _status(server: ServerProcess) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/status", timeout=10) as answer:
        status: dict[str, Any] = json.load(answer)
        return status


def _work(endpoint: str) -> None:
    """Two tenants, one with a hostile name: prompts stored once and read twice."""
    dice = random.Random(1)
    for salt in ("", HOSTILE):
        with FakeEngine(endpoint, salt=salt, model="model-<b>1</b>") as engine:
            for number in range(6):
                tokens = [dice.randrange(32000) for _ in range(256 * 4)]
                engine.lookup(tokens, f"first-{number}")
                assert engine.store(tokens, f"first-{number}")
                engine.end(f"first-{number}")
                for again in range(2):
                    request = f"again-{number}-{again}"
                    assert engine.lookup(tokens, request) == 4
                    engine.retrieve(tokens, request, 0, 256 * 4)
                    engine.end(request)


def test_it_shows_what_the_status_says(page: Page, server: ServerProcess) -> None:
    status = _status(server)
    assert page.locator("#health").inner_text() == "healthy"
    assert status["server"]["instance_id"] in page.locator("#server").inner_text()
    # 12 prompts of 4 chunks: a miss and two hits each
    expect(page.locator("#hit-figures")).to_contain_text("66.7 %")
    rows = page.locator("#tenant-table tbody tr").all_inner_texts()
    assert len(rows) == len(status["tenants"]) == 2
    assert all("66.7 %" in row and "18" in row for row in rows)
    assert "serving" in page.locator("#adapters tbody tr").inner_text()
    assert page.locator("#slow details").count() > 0
    names = [thread.split("\t")[0] for thread in page.locator("#threads tbody tr").all_inner_texts()]
    assert sorted(names) == sorted(status["threads"])


def test_a_slow_request_shows_its_steps(page: Page) -> None:
    page.locator("#slow details").first.locator("summary").click()
    steps = page.locator("#slow details[open] .spans li").all_inner_texts()
    assert any(step.startswith("lookup") for step in steps)


def test_names_of_tenants_are_text(page: Page) -> None:
    assert HOSTILE in page.locator("#tenant-table").inner_text()
    assert page.locator("img").count() == 0
    assert page.title() != "1"


def test_tables_are_sorted_by_a_click_on_their_heads_and_say_so(page: Page) -> None:
    head = page.locator("#threads th").first
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    names = [row.split("\t")[0] for row in page.locator("#threads tbody tr").all_inner_texts()]
    assert names == sorted(names)
    page.keyboard.press("Enter")  # the button has the focus still
    expect(page.locator("#threads th").first).to_have_attribute("aria-sort", "descending")


def test_it_can_be_used_with_the_keyboard_alone(page: Page) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.closest('[id]')?.id"))
    assert {"period", "theme", "hit-chart", "traffic-chart", "adapters", "tenant-table", "slow", "events"} <= reached


def test_the_curve_is_read_with_the_arrow_keys(page: Page) -> None:
    expect(page.locator("#hit-chart path").first).to_be_attached(timeout=30_000)
    page.locator("#hit-chart svg").focus()
    page.keyboard.press("End")
    said = page.locator("#hit-chart output")
    assert "hit rate" in said.inner_text()
    page.keyboard.press("Home")
    assert "hit rate" in said.inner_text()
    curve = page.locator("#hit-chart svg")
    # what is read aloud: the keys reach a slider, and no picture
    assert curve.get_attribute("role") == "slider"
    assert curve.get_attribute("aria-valuetext") == said.inner_text()
    assert curve.get_attribute("aria-valuenow") == "0"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_everything_has_a_name_and_can_be_read(chromium: Browser, server: ServerProcess, theme: Any) -> None:
    for page in _opened(chromium, server, color_scheme=theme):
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        assert page.evaluate(CONTRAST) == []
        assert page.evaluate(UNNAMED) == []
        assert page.locator("th:not([scope])").count() == 0
        assert page.locator("table:not(:has(caption))").count() == 0


def test_the_theme_can_be_chosen_and_stays(page: Page) -> None:
    page.locator("#theme").select_option("dark")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_phone_shows_all_of_it_without_scrolling_sideways(chromium: Browser, server: ServerProcess) -> None:
    for page in _opened(chromium, server, viewport={"width": PHONE, "height": 844}, is_mobile=True, has_touch=True):
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE


def test_a_server_that_is_gone_is_shown(chromium: Browser, server: ServerProcess) -> None:
    context = chromium.new_context()
    page = context.new_page()
    page.goto(_url(server))
    expect(page.locator("#tenant-table tbody tr").first).to_be_visible()
    context.set_offline(True)
    page.locator("#period").select_option("2")
    expect(page.locator("#problem")).to_contain_text("No news since")
    context.set_offline(False)
    expect(page.locator("#problem")).to_be_hidden(timeout=15_000)
    context.close()


def test_what_is_not_collected_is_not_shown_as_zero(chromium: Browser, tmp_path: Path) -> None:
    options = ["--l1-size-gb", "0.01", "--prometheus-port", "0", "--disable-observability"]
    with ServerProcess(options, tmp_path / "server.log") as blind:
        context = chromium.new_context()
        page = context.new_page()
        page.goto(_url(blind))
        expect(page.locator("#health")).to_have_text("healthy")
        assert all(
            name in page.locator("#missing").inner_text() for name in ("metrics", "slow_requests", "recent_events")
        )
        assert "not known" in page.locator("#hit-figures").inner_text()
        assert page.locator("#hit-note").inner_text() == "Metrics are off."
        assert page.locator("#slow").inner_text() == page.locator("#event-list").inner_text() == "Not known."
        assert page.locator("#problem").is_hidden()
        context.close()


def test_with_a_token_the_page_asks_for_it(chromium: Browser, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text(TOKEN)
    secret.chmod(0o600)
    options = ["--l1-size-gb", "0.01", "--prometheus-port", "0", "--http-token-file", str(secret)]
    with ServerProcess(options, tmp_path / "server.log") as guarded:
        context = chromium.new_context()
        page = context.new_page()
        page.goto(_url(guarded))
        expect(page.locator("#login")).to_be_visible()
        assert page.locator("#tenant-table tbody tr").count() == 0, "figures without a token"
        page.locator("#token").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#login-problem")).to_contain_text("not the token")
        page.locator("#token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.locator("#health")).to_have_text("healthy")
        assert TOKEN not in page.content()
        assert TOKEN not in page.url
        context.close()
