"""What tests of loading plugins ask of the loaded ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lmcache_core.app.plugins.discovery import PluginRow
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.contracts.server_view import ServerInfo

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
