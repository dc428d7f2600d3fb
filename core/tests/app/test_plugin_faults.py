"""One plugin's fault stays its own, from its import to the start of the server."""

from __future__ import annotations

import logging
import sys

import pytest

from core.tests.app.plugin_rows import ONE_ADAPTER, SERVER, Install, adapters, row
from lmcache_client.errors import ConfigError
from lmcache_core.app.plugins.discovery import Status
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.model.errors import PluginContractError

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
def test_a_module_that_cannot_be_imported_is_a_row_and_harms_no_other(install: Install, source: str, says: str) -> None:
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
            "hookimpl definition: lmcache_l2_adapters(config) Argument(s) {'config'} are declared in the hookimpl but",
        ),
        (
            "@hookimpl\ndef lmcache_server_started(server, config): pass",
            "hookimpl definition: lmcache_server_started(server, config) Argument(s) {'config'} are declared in the",
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
def test_a_plugin_that_breaks_the_contract_offers_nothing_and_harms_no_other(
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


def test_an_optional_hook_returns_offers_of_a_kind_that_another_distribution_defines(install: Install) -> None:
    head = "from lmcache_core import Offer, hookimpl\n@hookimpl(optionalhook=True)\ndef lmcache_teleports():\n"
    install("acme", head + "    return [Offer('beam', 'Beams.', 'acme_plugin:lmcache_teleports')]\n")
    install("zeta", head.replace("Offer, ", "") + "    return None\n")
    plugins = load_plugins()
    assert [offer.name for offer in plugins.offers("teleport")] == ["beam"]
    assert "teleport" in plugins.kinds
    assert plugins.owner("teleport", "beam").name == "acme"
    with pytest.raises(ConfigError, match=r"no teleport is called 'beem'.*Installed: beam"):
        plugins.offer("teleport", "beem")
    assert row(plugins, "zeta").error == "lmcache_teleports returned nothing; it must return a list of Offer"


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


def test_a_plugin_that_broke_the_contract_gets_no_calls(install: Install) -> None:
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
