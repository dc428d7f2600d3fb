"""Throw-away distributions: a folder on the path with metadata and a module, as an installer would leave them."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from lmcache_core.app.plugins.discovery import Origin, discover
from lmcache_core.app.settings import ServerSettings, variable_of

Install = Callable[..., Path]

ONE_ADAPTER = """
    from lmcache_core import Offer, hookimpl

    @hookimpl
    def lmcache_l2_adapters():
        return [Offer("{name}", "for tests", "{name}_plugin:open_it")]
    """


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """`install("acme", source)` installs distribution acme-dist 1.0 with plugin acme, module acme_plugin."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(
        name: str,
        source: str | None = None,
        *,
        distribution: str | None = None,
        module: str | None = None,
        group: str = "lmcache.plugins.v1",
        requires: str | None = "lmcache-core>=0.1",
    ) -> Path:
        owner, module = distribution or f"{name}-dist", module or f"{name}_plugin"
        (tmp_path / f"{module}.py").write_text(dedent(source or ONE_ADAPTER.format(name=name)))
        folder = tmp_path / f"{owner.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        needs = f"Requires-Dist: {requires}\n" if requires else ""
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {owner}\nVersion: 1.0\n{needs}")
        (folder / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}\n")
        importlib.invalidate_caches()
        return folder

    yield put
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == tmp_path:
            del sys.modules[name]


@pytest.fixture
def only_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else is installed beside core is not seen."""
    core = [candidate for candidate in discover() if candidate.origin is Origin.BUILTIN]
    monkeypatch.setattr("lmcache_core.app.plugins.loading.discover", lambda: core)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting comes from outside of the test."""
    for name in ServerSettings.model_fields:
        monkeypatch.delenv(variable_of(name), raising=False)


@pytest.fixture
def child_environment(tmp_path: Path) -> dict[str, str]:
    """For subprocesses that see the installed throw-away distributions."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LMCACHE_")}
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    return {**kept, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
