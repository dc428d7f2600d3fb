"""Loading: what is used, what is not, and that one plugin's fault stays its own."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.plugins.plugin_row import PluginRow, Status
from lmcache_core.contracts.server_info import ServerInfo
from lmcache_core.model.errors import ConfigError, PluginContractError, PluginError, PluginLoadError

Install = Callable[..., Path]
SERVER = ServerInfo("i", "b", "tcp://127.0.0.1:1", None, 256, "0.1.0")
ONE_ADAPTER = """
    from lmcache_core import Offer, hookimpl

    @hookimpl
    def lmcache_l2_adapters():
        return [Offer("shared", "for tests", "acme_plugin:open_it")]
    """


def row(plugins: LoadedPlugins, name: str) -> PluginRow:
    (found,) = [each for each in plugins.rows() if each.candidate.name == name]
    return found


def adapters(plugins: LoadedPlugins) -> set[str]:
    return {offer.name for offer in plugins.offers("l2_adapter")}


# what is used


def test_core_itself_comes_in_through_its_entry_point() -> None:
    plugins = load_plugins()
    builtin = plugins.rows()[0]
    assert (builtin.candidate.name, builtin.candidate.distribution) == ("builtin", "lmcache-core")
    assert builtin.status is Status.ACTIVE
    assert plugins.offer("eviction_policy", "LRU").open == "lmcache_core.builtin.lru:open_lru"
    assert [offer.name for offer in plugins.defaults("request_module")] == ["lookup", "management"]


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


def test_damaged_metadata_of_somebody_else_does_no_harm(install: Install, tmp_path: Path) -> None:
    install("acme")
    stranger = tmp_path / "stranger-1.0.dist-info"
    stranger.mkdir()
    (stranger / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (stranger / "entry_points.txt").write_text("[lmcache.plugins.v1]\nno equals sign here\n")
    (tmp_path / "leftover-1.0.dist-info").mkdir()
    plugins = load_plugins()
    assert "acme" in adapters(plugins)
    assert row(plugins, "stranger").status is Status.BROKEN


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


def test_nobody_can_take_the_place_of_the_builtin_plugin(install: Install) -> None:
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
    assert {"acme", "memory", "mock", "fault_inject"} == adapters(plugins)
    assert row(plugins, "other").status is Status.BLOCKED
    assert "other_plugin" not in sys.modules


def test_a_blocked_plugin_is_not_imported_and_the_message_says_who_blocked_it(install: Install) -> None:
    install("acme")
    plugins = load_plugins(blocked=["acme", "acne"])
    assert "acme_plugin" not in sys.modules
    assert "--no-plugin acne: no plugin is called so; did you mean 'acme'?" in plugins.warnings
    with pytest.raises(ConfigError, match=r"'acme' cannot be had: plugin 'acme' is blocked by --no-plugin"):
        plugins.offer("l2_adapter", "acme")


def test_the_builtin_plugin_cannot_be_blocked() -> None:
    with pytest.raises(ConfigError, match="built-in"):
        load_plugins(blocked=["builtin"])


def test_a_selected_plugin_that_is_not_there(install: Install) -> None:
    install("acme")
    with pytest.raises(ConfigError, match="did you mean 'acme'"):
        load_plugins(["acmee"])
    with pytest.raises(ConfigError, match=r"--plugin coordinator: not installed: pip install lmcache-coordinator"):
        load_plugins(["coordinator"])


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


# one plugin's fault


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("assert False, 'not on this machine'", "AssertionError: not on this machine"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def broken(:", "SyntaxError"),
        ("value = 1", "has no hook"),
    ],
)
def test_a_module_that_cannot_be_imported_is_a_row_and_harms_nobody(install: Install, source: str, says: str) -> None:
    install("acme", source)
    install("zeta")
    plugins = load_plugins()
    assert row(plugins, "acme").status is Status.BROKEN
    assert says in str(row(plugins, "acme").error)
    assert {"memory", "zeta"} <= adapters(plugins)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def lmcache_l2_adapters(): return []", "lmcache_l2_adapters is not decorated with @hookimpl"),
        ("@hookimpl\ndef lmcache_l2_adaptors(): return []", "did you mean lmcache_l2_adapters?"),
        ("@hookimpl\ndef lmcache_frobnicate(): return []", "no hook is called lmcache_frobnicate; known: lmcache_"),
        ("@hookimpl\ndef l2_adapters(): return []", "no hook is called l2_adapters; did you mean lmcache_l2_adapters?"),
        ("@hookimpl(specname='lmcache_l2')\ndef f(): return []", "no hook is called lmcache_l2; known:"),
        ("@hookimpl(specname='lmcache_l2_adapters')\ndef f(): return [3]", "returned int where Offer belongs"),
        ("def lmcache_l2_adaptor(): return []", "did you mean lmcache_l2_adapters?"),
        (
            "@hookimpl\ndef lmcache_l2_adapters(config): return []",
            "lmcache_l2_adapters takes 'config', which it is not given; it is called with: (nothing)",
        ),
        (
            "@hookimpl\ndef lmcache_server_started(server, config): pass",
            "lmcache_server_started takes 'config', which it is not given; it is called with: server",
        ),
        (
            "@hookimpl\ndef lmcache_l2_adapters(): return Offer('x', 's', 'a:b')",
            "lmcache_l2_adapters returned an Offer; it must return a list of Offer",
        ),
        ("@hookimpl\ndef lmcache_l2_adapters(): 1 / 0", "lmcache_l2_adapters failed: ZeroDivisionError"),
        ("@hookimpl\ndef lmcache_l2_adapters(): raise SystemExit", "lmcache_l2_adapters failed: SystemExit"),
        ("@hookimpl\ndef lmcache_l2_adapters(): pass", "lmcache_l2_adapters returned nothing"),
        ("@hookimpl\ndef lmcache_l2_adapters(): return 3", "TypeError"),
        ("@hookimpl\ndef lmcache_l2_adapters(): return ['fs']", "returned str where Offer belongs"),
        ("@hookimpl\ndef lmcache_l2_adapters(): return [Offer('', 's', 'a:b')]", "with the name ''"),
        ("@hookimpl\ndef lmcache_l2_adapters(): return [Offer(None, 's', 'a:b')]", "with the name None"),
        (
            "@hookimpl\ndef lmcache_l2_adapters(): return [Offer('x', 's', 'a.b')]",
            "open is 'a.b', not an import string",
        ),
        ("@hookimpl\ndef lmcache_l2_adapters(): return [Offer('x', 's', 'a:b', 'c')]", "settings is 'c'"),
        ("@hookimpl\ndef lmcache_l2_adapters(): return [Offer('x', 's', 'a:b')] * 2", "'x' is offered twice"),
    ],
)
def test_a_plugin_that_breaks_the_contract_offers_nothing_and_harms_nobody(
    install: Install, source: str, says: str
) -> None:
    install("acme", f"from lmcache_core import Offer, hookimpl\n{source}\n")
    install("zeta")
    plugins = load_plugins()
    assert row(plugins, "acme").status is Status.BROKEN
    assert says in str(row(plugins, "acme").error)
    assert row(plugins, "acme").offers == ()
    assert adapters(plugins) >= {"memory", "zeta"}
    assert "x" not in adapters(plugins)
    plugins.started(SERVER)


def test_one_module_cannot_be_two_plugins(install: Install) -> None:
    install("acme")
    install("zeta", ONE_ADAPTER, module="acme_plugin")
    plugins = load_plugins()
    assert row(plugins, "acme").status is Status.AVAILABLE
    assert row(plugins, "zeta").error == "module acme_plugin is that of plugin 'acme', too"
    assert "shared" in adapters(plugins)


def test_a_hook_of_a_later_version_may_be_marked_as_optional(install: Install) -> None:
    optional = "@hookimpl(optionalhook=True)\ndef lmcache_teleports(): return []\n"
    install("acme", f"from lmcache_core import hookimpl\n{optional}")
    assert row(load_plugins(), "acme").status is Status.AVAILABLE


def test_a_name_that_two_plugins_offer_belongs_to_neither(install: Install) -> None:
    install("acme")
    both = "from lmcache_core import Offer, hookimpl\n@hookimpl\ndef lmcache_l2_adapters():\n"
    install("zeta", both + "    return [Offer('acme', 's', 'z:o'), Offer('zeta', 's', 'z:o')]\n")
    plugins = load_plugins()
    assert {"memory", "zeta"} <= adapters(plugins)
    assert "acme" not in adapters(plugins)
    owners = r"plugin 'acme' \(acme-dist 1.0\) and plugin 'zeta' \(zeta-dist 1.0\)"
    with pytest.raises(PluginContractError, match=owners):
        plugins.offer("l2_adapter", "acme")
    assert load_plugins(blocked=["zeta"]).offer("l2_adapter", "acme")


def test_cores_names_stay_cores(install: Install) -> None:
    taking = "from lmcache_core import Offer, hookimpl\n@hookimpl\ndef lmcache_eviction_policies():\n"
    install("acme", taking + "    return [Offer('LRU', 'mine', 'acme_plugin:o')]\n")
    plugins = load_plugins()
    assert plugins.offer("eviction_policy", "LRU").summary != "mine"
    assert any("the name is that of lmcache-core" in line for line in plugins.warnings)


# what is asked for and not there


def test_an_unknown_name_is_answered_with_what_is_installed_and_what_could_be(only_core: None) -> None:
    plugins = load_plugins()
    with pytest.raises(ConfigError) as caught:
        plugins.offer("l2_adapter", "s4")
    assert str(caught.value) == (
        "no L2 adapter is called 's4'. Installed: fault_inject (lmcache-core 0.1.0), memory (lmcache-core 0.1.0), "
        "mock (lmcache-core 0.1.0). "
        "Known but not installed: s3 -> pip install lmcache-l2-s3"
    )
    with pytest.raises(ConfigError, match="did you mean 'LRU'"):
        plugins.offer("eviction_policy", "LRUU")
    with pytest.raises(ConfigError, match="noop -> pip install lmcache-policies"):
        plugins.offer("eviction_policy", "noop")


def test_a_guess_ends_its_sentence(install: Install, only_core: None) -> None:
    with pytest.raises(ConfigError) as caught:
        load_plugins().offer("eviction_policy", "LRUU")
    assert str(caught.value) == (
        "no eviction policy is called 'LRUU'; did you mean 'LRU'? Installed: LRU (lmcache-core 0.1.0)"
    )


def test_a_plugin_that_is_named_after_its_kind_is_found_by_the_name_of_its_offer(install: Install) -> None:
    install("l2_acme", "import no_such_library")
    with pytest.raises(PluginLoadError, match=r"L2 adapter 'acme' cannot be had: .*no_such_library"):
        load_plugins().offer("l2_adapter", "acme")


def test_a_broken_plugin_that_the_configuration_needs_is_named_with_its_error(install: Install) -> None:
    install("s3", "import boto_three", distribution="lmcache-l2-s3")
    plugins = load_plugins()
    with pytest.raises(PluginLoadError, match=r"L2 adapter 's3' cannot be had: .*No module named 'boto_three'"):
        plugins.offer("l2_adapter", "s3")


# opening


OPENING = """
    from lmcache_core import ConfigError, Offer, PluginSettings, hookimpl

    class AcmeSettings(PluginSettings):
        size: int = 1

    def open_it(settings, context): return (settings.size, context)
    def open_badly(settings): raise OSError("no such device")
    def open_buggily(settings): return no_such_name
    def open_wrong(settings): raise ConfigError("size is too small")

    @hookimpl
    def lmcache_l2_adapters():
        here = "acme_plugin"
        return [
            Offer("good", "s", f"{here}:open_it", f"{here}:AcmeSettings"),
            Offer("bad", "s", f"{here}:open_badly"),
            Offer("buggy", "s", f"{here}:open_buggily"),
            Offer("gone", "s", f"{here}.adaptr:open"),
            Offer("gone_settings", "s", f"{here}:open_it", f"{here}.config:S"),
            Offer("wrong", "s", f"{here}:open_wrong"),
            Offer("absent", "s", "boto_three.session:open"),
            Offer("nameless", "s", f"{here}:nothing"),
            Offer("other_model", "s", f"{here}:open_it", f"{here}:open_it"),
        ]
    """


def test_opening_an_offer_makes_its_plugin_active(install: Install) -> None:
    install("acme", OPENING)
    plugins = load_plugins()
    assert row(plugins, "acme").status is Status.AVAILABLE
    model = plugins.model("l2_adapter", "good")
    assert model is not None
    assert plugins.open("l2_adapter", "good", model(size=7), "context") == (7, "context")  # type: ignore[call-arg]
    assert row(plugins, "acme").status is Status.ACTIVE


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "bad",
            r"L2 adapter 'bad' \(acme-dist 1.0\) cannot be opened: OSError: no such device \(/.*/acme_plugin.py:8\)$",
        ),
        ("buggy", r"NameError: name 'no_such_name' is not defined \(/.*/acme_plugin.py:9\)$"),
        ("gone", r"cannot be opened: open names module acme_plugin.adaptr, which acme-dist does not have$"),
        ("absent", r"No module named 'boto_three'; .*pip install --upgrade acme-dist"),
        ("nameless", r"cannot be opened: AttributeError"),
    ],
)
def test_an_offer_that_cannot_be_opened(install: Install, name: str, says: str) -> None:
    install("acme", OPENING)
    with pytest.raises(PluginLoadError, match=says):
        load_plugins().open("l2_adapter", name, None)


def test_settings_in_a_module_that_the_distribution_does_not_have(install: Install) -> None:
    install("acme", OPENING)
    with pytest.raises(
        PluginLoadError, match=r"settings names module acme_plugin.config, which acme-dist does not have$"
    ):
        load_plugins().model("l2_adapter", "gone_settings")


# a plugin whose source is here


def installed_from(folder: Path, metadata: Path, editable: bool) -> None:
    about = {"url": folder.as_uri(), "dir_info": {"editable": True} if editable else {}}
    (metadata / "direct_url.json").write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import os\nimport no_such_library\n", ":2"),
        ("x = 1\ndef broken(:\n", ":2"),
        ("from lmcache_core import hookimpl\n@hookimpl\ndef lmcache_l2_adapters():\n    return 1 / 0\n", ":4"),
        ("from lmcache_core import hookimpl\n@hookimpl\ndef lmcache_l2_adapters(): pass\n", ""),
    ],
)
def test_the_remedy_is_a_line_where_the_source_is_here(
    install: Install, tmp_path: Path, source: str, line: str
) -> None:
    installed_from(tmp_path / "my source", install("acme", source), editable=True)
    mend = f"mend {tmp_path}/acme_plugin.py{line}"
    assert row(load_plugins(), "acme").remedy == f"{mend}, or leave it out: --no-plugin acme"


def test_a_copy_is_installed_again_when_its_source_is_mended(install: Install, tmp_path: Path) -> None:
    installed_from(tmp_path / "my source", install("acme", "1 / 0\n"), editable=False)
    mend = f"mend {tmp_path}/acme_plugin.py:1 and install {tmp_path}/my source again"
    assert row(load_plugins(), "acme").remedy == f"{mend}, or leave it out: --no-plugin acme"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"url": "https://example.org/a.whl", "archive_info": {}}'])
def test_what_came_from_elsewhere_is_installed_again(install: Install, text: str) -> None:
    (install("acme", "1 / 0\n") / "direct_url.json").write_text(text)
    assert str(row(load_plugins(), "acme").remedy).startswith("pip install --force-reinstall acme-dist, or")


def test_the_plugins_own_configuration_errors_pass_through(install: Install) -> None:
    install("acme", OPENING)
    with pytest.raises(ConfigError, match=r"^size is too small$"):
        load_plugins().open("l2_adapter", "wrong", None)


def test_a_settings_model_must_be_one(install: Install) -> None:
    install("acme", OPENING)
    with pytest.raises(PluginError, match="is no PluginSettings"):
        load_plugins().model("l2_adapter", "other_model")


# start and stop


def test_one_plugin_that_fails_at_the_start_does_not_keep_the_others_from_hearing(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    listening = "from lmcache_core import hookimpl\nheard = []\n@hookimpl\ndef lmcache_server_{}(server): "
    install("acme", listening.format("started") + "1 / 0\n")
    install("zeta", listening.format("started") + "heard.append(server.instance_id)\n")
    install("yeti", listening.format("stopping") + "heard.append(server.boot_id)\n")
    plugins = load_plugins()
    with caplog.at_level(logging.ERROR):
        plugins.started(SERVER)
    plugins.stopping(SERVER)
    assert sys.modules["zeta_plugin"].heard == ["i"]
    assert sys.modules["yeti_plugin"].heard == ["b"]
    assert "plugin failed plugin=acme hook=lmcache_server_started" in caplog.text


def test_a_plugin_that_broke_the_contract_is_not_told_of_anything(install: Install) -> None:
    source = """
        from lmcache_core import hookimpl
        heard = []

        @hookimpl
        def lmcache_server_started(server): heard.append(server)

        @hookimpl
        def lmcache_{hook}({argument}): return [3]
        """
    install("acme", source.format(hook="l2_adapters", argument=""))
    install("zeta", source.format(hook="subscribers", argument="unexpected"))
    plugins = load_plugins()
    plugins.started(SERVER)
    assert [row(plugins, name).status for name in ("acme", "zeta")] == [Status.BROKEN] * 2
    assert sys.modules["acme_plugin"].heard == []
    assert sys.modules["zeta_plugin"].heard == []
