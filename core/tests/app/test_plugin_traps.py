"""Known traps of stevedore and pluggy.  Each test shows the trap in the library first, and then that this project avoids it;
where a library has fixed it, the first half says so."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy
import pytest
from stevedore import _cache
from stevedore.extension import ExtensionManager

from lmcache_core.app.plugins.discovery import PluginRow, Status
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.contracts import hookspecs

Install = Callable[..., Path]
GROUP = hookspecs.ENTRY_POINT_GROUP


@pytest.fixture(autouse=True)
def stevedores_own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache directory of the test's own, with caching on, and nothing remembered in the process."""
    folder = tmp_path / "cache"
    cache = _cache.Cache(str(folder))
    cache._disable_caching = False  # it is off where the interpreter lives below /tmp
    monkeypatch.setattr(_cache, "get_group_all", cache.get_group_all)
    ExtensionManager.ENTRY_POINT_CACHE.clear()
    yield folder
    ExtensionManager.ENTRY_POINT_CACHE.clear()


def row(plugins: LoadedPlugins, name: str) -> PluginRow:
    (found,) = [each for each in plugins.rows() if each.candidate.name == name]
    return found


def stevedore_loads(on_failure: Callable[..., None] | None = None) -> ExtensionManager[Any]:
    """What a program that trusts stevedore does."""
    ExtensionManager.ENTRY_POINT_CACHE.clear()
    return ExtensionManager(GROUP, on_load_failure_callback=on_failure)


def manager(*modules: ModuleType) -> pluggy.PluginManager:
    """What a program that trusts pluggy does."""
    plugins = pluggy.PluginManager(hookspecs.PROJECT)
    plugins.add_hookspecs(hookspecs)
    for module in modules:
        plugins.register(module)
    return plugins


def module_of(name: str) -> ModuleType:
    return importlib.import_module(f"{name}_plugin")


def test_trap_stevedores_entry_points_carry_no_distribution(install: Install) -> None:
    install("acme")
    (entry,) = [entry for entry in stevedore_loads().list_entry_points() if entry.name == "acme"]
    assert getattr(entry, "dist", None) is None
    found = row(load_plugins(), "acme").candidate
    assert (found.distribution, found.version) == ("acme-dist", "1.0")


def test_trap_stevedores_cache_is_stale_for_128_seconds_after_an_uninstall(install: Install) -> None:
    """It is keyed by modification times in single precision, which step by 128 s."""
    folder = install("acme")
    at = time.time() // 128 * 128
    stamp_all(folder, at)
    names = {entry.name for entry in stevedore_loads().list_entry_points()}
    assert "acme" in names
    (folder / "entry_points.txt").write_text(f"[{GROUP}]\nother = acme_plugin\n")
    stamp_all(folder, at + 1)
    _cache.get_group_all.__self__._internal.clear()  # type: ignore[attr-defined]  # as in the next process
    names = {entry.name for entry in stevedore_loads().list_entry_points()}
    assert "acme" in names
    assert "other" not in names
    ours = {each.candidate.name for each in load_plugins().rows()}
    assert "other" in ours
    assert "acme" not in ours


def stamp_all(folder: Path, seconds: float) -> None:
    for path in (folder / "entry_points.txt", folder, folder.parent):
        os.utime(path, (seconds, seconds))


def test_trap_stevedore_imports_before_anybody_can_check(install: Install) -> None:
    install(
        "acme", "from pathlib import Path\nPath(__file__).with_name('imported').touch()", requires="lmcache-core>=99"
    )
    proof = Path(sys.path[0]) / "imported"
    found = row(load_plugins(), "acme")
    assert found.status is Status.INCOMPATIBLE
    assert "requires lmcache-core>=99, this is 0.1" in str(found.error)
    assert found.remedy == "pip install --upgrade lmcache-core acme-dist"
    assert not proof.exists()
    stevedore_loads()
    assert proof.exists()


def test_trap_an_assertion_error_escapes_stevedores_failure_callback(install: Install) -> None:
    install("acme", "assert False, 'not on this machine'")
    failed: list[EntryPoint] = []
    with pytest.raises(AssertionError, match="not on this machine"):
        stevedore_loads(lambda manager, entry, error: failed.append(entry))
    assert failed == []
    install("zeta")
    plugins = load_plugins()
    assert row(plugins, "acme").error == "AssertionError: not on this machine"
    assert row(plugins, "zeta").status is Status.AVAILABLE


@pytest.mark.parametrize("source", ["raise SystemExit(3)", "class Odd(BaseException): pass\nraise Odd('on purpose')"])
def test_trap_what_is_not_an_exception_escapes_stevedores_failure_callback(install: Install, source: str) -> None:
    install("acme", source)
    with pytest.raises(BaseException, match=r"3|on purpose") as caught:
        stevedore_loads(lambda manager, entry, error: None)
    assert not isinstance(caught.value, Exception)
    assert row(load_plugins(), "acme").status is Status.BROKEN


def test_ctrl_c_during_an_import_is_the_users_and_not_a_broken_plugin(install: Install) -> None:
    install("acme", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_plugins()


HOOKS = "from lmcache_core import Offer, hookimpl\n"


def test_trap_pluggy_stops_at_the_first_unknown_hook(install: Install) -> None:
    one = "@hookimpl\ndef lmcache_frobnicate(): return []\n"
    install("acme", HOOKS + one + "@hookimpl\ndef lmcache_l2_adapters(): return [Offer('acme', 's', 'a:b')]\n")
    install("zeta")
    plugins = manager(module_of("acme"), module_of("zeta"))
    with pytest.raises(pluggy.PluginValidationError, match="lmcache_frobnicate"):
        plugins.check_pending()
    ours = load_plugins()
    assert "no hook is called lmcache_frobnicate; known: lmcache_l2_adapters" in str(row(ours, "acme").error)
    assert row(ours, "zeta").status is Status.AVAILABLE


def test_trap_pluggy_passes_over_an_undecorated_hook_in_silence(install: Install) -> None:
    install("acme", "def lmcache_l2_adapters(): return []\n")
    plugins = manager(module_of("acme"))
    assert plugins.hook.lmcache_l2_adapters() == []
    plugins.check_pending()
    assert row(load_plugins(), "acme").error == (
        "lmcache_l2_adapters is not decorated with @hookimpl and would never be called"
    )


def test_trap_pluggy_loses_all_answers_when_one_plugin_raises(install: Install) -> None:
    install("acme", HOOKS + "@hookimpl\ndef lmcache_l2_adapters(): 1 / 0\n")
    install("zeta")
    plugins = manager(module_of("zeta"), module_of("acme"))
    with pytest.raises(ZeroDivisionError):
        plugins.hook.lmcache_l2_adapters()
    ours = load_plugins()
    assert row(ours, "acme").error == "lmcache_l2_adapters failed: ZeroDivisionError: division by zero"
    assert "zeta" in {offer.name for offer in ours.offers("l2_adapter")}


def test_trap_an_offer_of_two_plugins_is_not_that_of_the_last_one(install: Install) -> None:
    """What a dictionary filled from hook results would do.  Both owners are named in the list."""
    for name in ("acme", "zeta"):
        install(name, HOOKS + f"@hookimpl\ndef lmcache_l2_adapters(): return [Offer('shared', '{name}', 'a:b')]\n")
    plugins = load_plugins()
    for name in ("acme", "zeta"):
        (line,) = row(plugins, name).conflicts
        assert "plugin 'acme' (acme-dist 1.0) and plugin 'zeta' (zeta-dist 1.0); none of them is used" in line
    assert "shared" not in {offer.name for offer in plugins.offers("l2_adapter")}
