"""Which plugins are found, selected and used, and which are not even imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from core.tests.app.plugin_rows import Install, adapters, row
from lmcache_client.errors import ConfigError
from lmcache_core.app.plugins import loading
from lmcache_core.app.plugins.catalogue import Catalogue
from lmcache_core.app.plugins.discovery import Status
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.model.errors import PluginLoadError

# what is used


def test_core_itself_comes_in_through_its_entry_point() -> None:
    plugins = load_plugins()
    builtin = plugins.rows()[0]
    assert (builtin.candidate.name, builtin.candidate.distribution) == ("builtin", "lmcache-core")
    assert builtin.status is Status.ACTIVE
    assert plugins.offer("eviction_policy", "LRU").open == "lmcache_core.builtin.lru:open_lru"
    assert {"lookup", "management"} <= {offer.name for offer in plugins.defaults("request_module")}


def test_installing_a_distribution_is_all_it_takes(install: Install) -> None:
    install("acme")
    plugins = load_plugins()
    found = row(plugins, "acme")
    assert (found.candidate.distribution, found.candidate.version) == ("acme-dist", "1.0")
    assert found.status is Status.AVAILABLE
    assert plugins.offer("l2_adapter", "acme").summary == "for tests"


def test_stevedores_cache_on_disk_is_not_asked(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(group: str) -> list[object]:
        raise AssertionError("the cached list was read")

    monkeypatch.setattr("stevedore._cache.get_group_all", stale)
    install("acme")
    assert "acme" in adapters(load_plugins())


def test_a_distribution_that_is_on_the_path_twice_counts_once(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = install("acme")
    copy = tmp_path / "again" / folder.name
    copy.mkdir(parents=True)
    for part in folder.iterdir():
        (copy / part.name).write_text(part.read_text())
    monkeypatch.syspath_prepend(str(copy.parent))
    assert row(load_plugins(), "acme").status is Status.AVAILABLE


def test_damaged_metadata_of_another_distribution_does_no_harm(install: Install, tmp_path: Path) -> None:
    install("acme")
    foreign = tmp_path / "foreign-1.0.dist-info"
    foreign.mkdir()
    (foreign / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
    (foreign / "entry_points.txt").write_text("[lmcache.plugins.v1]\nno equals sign here\n")
    (tmp_path / "leftover-1.0.dist-info").mkdir()
    plugins = load_plugins()
    assert "acme" in adapters(plugins)
    assert row(plugins, "foreign").status is Status.BROKEN


# what is not used, and was not even imported


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"group": "lmcache.plugins.v2"}, "made for contract v2, this server has v1"),
        ({"requires": "lmcache_core>=99"}, "requires lmcache-core>=99, this is 0.1"),
        ({"requires": "lmcache-core<>1"}, "cannot be read"),
    ],
)
def test_a_plugin_for_another_contract_is_listed_and_not_imported(
    install: Install, how: dict[str, str], says: str
) -> None:
    install("acme", **how)
    plugins = load_plugins()
    found = row(plugins, "acme")
    assert found.status is Status.INCOMPATIBLE
    assert says in str(found.error)
    assert "pip install --upgrade" in str(found.remedy)
    assert "acme_plugin" not in sys.modules
    assert any("acme" in line for line in plugins.warnings)


@pytest.mark.parametrize(
    "requires", [None, "lmcache.core~=0.1", 'lmcache-core>=99; python_version < "3"', "lmcache-core-x>9"]
)
def test_requirements_that_are_met_or_do_not_apply(install: Install, requires: str | None) -> None:
    install("acme", requires=requires)
    assert row(load_plugins(), "acme").status is Status.AVAILABLE


def test_two_distributions_with_one_plugin_name_are_both_left_out(install: Install) -> None:
    install("acme")
    install("acme", distribution="other-dist", module="other_plugin")
    plugins = load_plugins()
    rows = [each for each in plugins.rows() if each.candidate.name == "acme"]
    assert [each.status for each in rows] == [Status.DUPLICATE] * 2
    assert {each.error for each in rows} == {"acme-dist 1.0 and other-dist 1.0 each have a plugin 'acme'"}
    assert {each.remedy for each in rows} == {"uninstall all but one, or rename the entry point in its pyproject.toml"}
    assert not {"acme_plugin", "other_plugin"} & set(sys.modules)
    with pytest.raises(PluginLoadError, match=r"acme-dist.*other-dist.*uninstall all but one"):
        plugins.offer("l2_adapter", "acme")


def test_no_plugin_can_take_the_place_of_the_builtin_one(install: Install) -> None:
    install("builtin")
    plugins = load_plugins()
    assert plugins.offer("l2_adapter", "memory")
    assert [each.status for each in plugins.rows() if each.candidate.name == "builtin"] == [
        Status.ACTIVE,
        Status.DUPLICATE,
    ]


# selection


def test_selected_plugins_and_the_builtin_one_alone_are_considered(install: Install) -> None:
    install("acme")
    install("other")
    plugins = load_plugins(["acme"])
    assert {"acme", "memory"} == adapters(plugins)
    assert row(plugins, "other").status is Status.BLOCKED
    assert "other_plugin" not in sys.modules


def test_a_blocked_plugin_is_not_imported_and_the_message_says_who_blocked_it(install: Install) -> None:
    install("acme")
    plugins = load_plugins(blocked=["acme", "acne"])
    assert "acme_plugin" not in sys.modules
    assert "--no-plugin acne: no plugin is called so; did you mean 'acme'?" in plugins.warnings
    with pytest.raises(ConfigError, match=r"'acme' is not available: plugin 'acme' is blocked by --no-plugin"):
        plugins.offer("l2_adapter", "acme")


def test_the_builtin_plugin_cannot_be_blocked() -> None:
    with pytest.raises(ConfigError, match="built-in"):
        load_plugins(blocked=["builtin"])


def test_a_selected_plugin_that_is_not_there(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("acme")
    with pytest.raises(ConfigError, match="did you mean 'acme'"):
        load_plugins(["acmee"])
    monkeypatch.setattr(loading, "catalogue", lambda: Catalogue({"gone": "lmcache-gone"}, {}, {}, {}))
    with pytest.raises(ConfigError, match=r"--plugin gone: not installed: pip install lmcache-gone"):
        load_plugins(["gone"])


def test_a_selected_plugin_that_is_broken_stops_the_start_with_the_original_error(install: Install) -> None:
    install("acme", "import no_such_library")
    with pytest.raises(PluginLoadError, match=r"acme-dist 1.0.*No module named 'no_such_library'.*--no-plugin acme"):
        load_plugins(["acme"])
    assert row(load_plugins(["acme"], strict=False), "acme").status is Status.BROKEN


def test_a_module_without_a_distribution_states_the_contract_itself(tmp_path: Path, install: Install) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    source = "from lmcache_core import Offer, hookimpl\n@hookimpl\ndef lmcache_l2_adapters():\n"
    source += "    return [Offer('mine', 's', 'mine.p:o')]\n"
    (package / "stated.py").write_text("LMCACHE_PLUGIN_API = 1\n" + source)
    (package / "silent.py").write_text(source)
    (package / "newer.py").write_text("LMCACHE_PLUGIN_API = 2\n" + source)
    assert "mine" in adapters(load_plugins(["mine.stated"]))
    with pytest.raises(PluginLoadError, match="states no LMCACHE_PLUGIN_API"):
        load_plugins(["mine.silent"])
    with pytest.raises(PluginLoadError, match="states 2 as its LMCACHE_PLUGIN_API"):
        load_plugins(["mine.newer"])
    with pytest.raises(PluginLoadError, match=r"No module named 'mine\.absent'"):
        load_plugins(["mine.absent"])
    for name in [each for each in sys.modules if each.partition(".")[0] == "mine"]:
        del sys.modules[name]
