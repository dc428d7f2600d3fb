"""`lmcache server`"""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core.app.configuration import read_settings
from lmcache_core.app.exit_code import ExitCode
from lmcache_core.app.flags import ServerFlags
from lmcache_core.app.loaded_plugins import LoadedPlugins
from lmcache_core.app.serve import RunningServer, serve
from lmcache_core.app.settings import ServerSettings


def run(arguments: Sequence[str]) -> ExitCode:
    return serve(read_settings(ServerFlags().given(arguments)), _build)


def _build(settings: ServerSettings, plugins: LoadedPlugins) -> RunningServer:
    # here, so that a wrong flag is answered before the whole server has been imported
    from lmcache_core.app.build import build

    return build(settings, plugins)
