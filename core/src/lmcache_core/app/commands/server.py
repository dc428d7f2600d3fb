"""`lmcache server`"""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_client.errors import LMCacheError
from lmcache_core.app.configuration import ServerFlags, read_settings
from lmcache_core.app.console.command_line import Parser, command_selection, server_selection
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_core.app.masking import Hidden
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.serve import RunningServer, serve
from lmcache_core.app.settings import ServerSettings


def parsers() -> list[Parser]:
    return [ServerFlags(command_selection().load())]


def run(arguments: Sequence[str]) -> ExitCode:
    hidden = Hidden()

    def build_server(settings: ServerSettings, plugins: LoadedPlugins) -> RunningServer:
        # here, so that a wrong flag is answered before the whole server has been imported
        from lmcache_core.app.build import build

        return build(settings, plugins, hidden)

    try:
        plugins = server_selection(arguments).load(strict=True)
        flags = ServerFlags(plugins, has_help="-h" in arguments or "--help" in arguments)
        settings = read_settings(flags.given(arguments), plugins)
        return serve(settings, plugins, build_server, hidden)
    except LMCacheError as error:
        error.args = (hidden.text(str(error)),)  # it may quote what a client library said
        raise
