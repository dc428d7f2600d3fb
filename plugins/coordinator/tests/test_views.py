"""Views of plugins: which pages they get, their routes, and that one that fails harms nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lmcache_client.errors import ConfigError
from lmcache_coordinator.coordinator import Coordinator
from lmcache_coordinator.registry import Registration
from lmcache_coordinator.settings import read_settings, view_settings
from lmcache_coordinator.states.sqlite import SqliteState
from lmcache_coordinator.views import Views
from lmcache_core import HttpAnswer, HttpRoute, Offer, SystemClock
from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_fleet.messages import JournalPage, Page, Reply, SnapshotPage, encode
from lmcache_fleet.view import KIND, CoordinatorView
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess
from plugins.coordinator.tests.test_routes import HASHES, SPACE, Poster, stored

PLUGIN = """
from lmcache_core import HttpAnswer, HttpRoute, Offer, hookimpl
from lmcache_fleet.view import CoordinatorView

class Counter(CoordinatorView):
    types = frozenset(("", "acme.tokens"))

    def __init__(self, settings):
        self.keys = {}

    def take(self, page, skip):
        self.keys[page.content] = self.keys.get(page.content, 0) + page.keys - skip

    def forget(self, instance):
        raise RuntimeError("it cannot forget")

    def routes(self):
        return [HttpRoute("GET", "/acme/keys", lambda asked: HttpAnswer(self.keys), "Keys.")]

@hookimpl(optionalhook=True)
def lmcache_coordinator_views():
    return [Offer("acme", "Counts keys.", "acme_plugin:Counter")]
"""


class Noting(CoordinatorView):
    types: ClassVar[frozenset[str]] = frozenset(("", "words"))

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int, int]] = []
        self.gone: list[str] = []

    def take(self, page: Page, skip: int) -> None:
        self.seen.append((type(page).__name__, page.content, page.keys, skip))

    def forget(self, instance: str) -> None:
        self.gone.append(instance)


class Failing(Noting):
    def take(self, page: Page, skip: int) -> None:
        raise RuntimeError("it fails")


class Catalogue:
    """Of plugins, with one view."""

    def __init__(self, name: str, view: Any) -> None:
        self.name, self.view = name, view

    def offers(self, kind: str) -> Sequence[Offer]:
        assert kind == KIND
        return [Offer(self.name, "A view.", "x:y")]

    def open(self, kind: str, name: str, settings: Any) -> Any:
        assert (kind, name) == (KIND, self.name)
        return self.view


def journal(first: int, begin: int, end: int, **more: Any) -> JournalPage:
    runs = (stored(begin, end),) if end > begin else ()
    return JournalPage(
        instance="one", incarnation="1", source="l1", spaces=(SPACE.tail,), runs=runs, first=first, **more
    )


def test_a_view_gets_what_is_admitted_and_nothing_else() -> None:
    noting, failing = Noting(), Failing()
    views = Views({"failing": failing, "noting": noting})
    settings = read_settings(())
    coordinator = Coordinator(settings, SqliteState(":memory:"), LeastRecentlyUsed, SystemClock(), views)
    coordinator.registry.register("one", Registration(incarnation="1"), None, False)

    def take(page: Page) -> Reply:
        return coordinator.take_page(encode(page), None)

    reply = take(journal(0, 0, 2))
    assert reply.types == ("words",), "members send what a view asks for"
    take(journal(0, 0, 2))  # again
    take(journal(1, 1, 4))  # one key again
    take(journal(9, 0, 1))  # behind a gap
    about: dict[str, Any] = {"instance": "one", "incarnation": "1", "spaces": (SPACE.tail,)}
    snapshot = SnapshotPage(source="l1", runs=(stored(0, 4),), snapshot=1, begins_at=4, page=0, last=False, **about)
    take(snapshot)
    take(SnapshotPage(source="l1", snapshot=1, begins_at=4, page=1, last=True, **about))
    take(SnapshotPage(source="l1", snapshot=1, begins_at=4, page=1, last=True, **about))
    for kind in ("words", "others"):
        source: dict[str, Any] = {"source": kind, "content": kind}
        take(JournalPage(**about, **source, runs=(stored(0, 1),), first=0))
    assert noting.seen == [
        ("JournalPage", "", 2, 0),
        ("JournalPage", "", 3, 1),
        ("SnapshotPage", "", 4, 0),
        ("SnapshotPage", "", 0, 0),
        ("JournalPage", "words", 1, 0),
    ]
    assert views.failures["failing"] == len(noting.seen)
    (keys,) = [keys for each, keys in coordinator.placements.counts().items() if each.source == "l1"]
    assert keys == len(HASHES) // 32, "pages for views alone are not in the directory"
    coordinator.registry.leave("one", None)
    assert noting.gone == ["one"]


def test_flags_of_a_view_that_is_not_installed_are_refused() -> None:
    settings = read_settings(("--blend-chunk-size", "64", "--blend-probe-stride", "2"))
    with pytest.raises(ConfigError, match="'blend'"):
        view_settings(settings, ["acme"])
    assert view_settings(settings, ["blend"]) == {"blend": {"chunk_size": 64, "probe_stride": 2}}
    assert view_settings(read_settings(()), []) == {}


def answer(asked: Any) -> HttpAnswer:
    return HttpAnswer({})


@pytest.mark.parametrize("path", ["/instances", "/l2/quota/{name}", "acme"])
def test_a_route_of_the_coordinator_is_not_a_views(path: str) -> None:
    class Taking(Noting):
        def routes(self) -> Sequence[HttpRoute]:
            return [HttpRoute("GET", path, answer, "Mine.")]

    views = Views.open(Catalogue("acme", Taking()), {})
    with pytest.raises(ConfigError, match="coordinator view 'acme'"):
        views.routes(["/instances", "/l2/quota/{cache_salt:str}"])
    with pytest.raises(ConfigError, match="opened a int"):
        Views.open(Catalogue("acme", 7), {})


@pytest.fixture
def coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CoordinatorProcess]:
    (tmp_path / "acme_plugin.py").write_text(PLUGIN)
    about = tmp_path / "lmcache_acme-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lmcache-acme\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[lmcache.plugins.v1]\nacme = acme_plugin\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with CoordinatorProcess(tmp_path) as running:
        yield running


def test_an_installed_view_answers(coordinator: CoordinatorProcess) -> None:
    one = Poster(coordinator, "one")
    assert "acme.tokens" in one.send("l1", stored(0, 3)).types
    assert coordinator.ask("GET", "/acme/keys") == (200, {"": 3})
    assert "/acme/keys" in coordinator.ask("GET", "/openapi.json").body["paths"]
    assert coordinator.ask("DELETE", "/instances/one").status == 204, "a view that fails harms nothing"
    assert "coordinator view failed name=acme" in coordinator.log.read_text()
