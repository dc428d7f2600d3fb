"""What a running server was told and what was changed since, for the admin API."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lmcache_core.admin.schemas_server import ConfiguredAdapter, OfferRow, PluginAnswer, Setting, Version
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.missing_modules import missing_modules
from lmcache_core.app.plugins.plugin_report import record
from lmcache_core.app.settings import ServerSettings
from lmcache_core.app.shown_settings import shown_adapter, shown_settings, shown_value
from lmcache_core.contracts.hookspecs import CONTRACT_VERSION
from lmcache_core.contracts.server_info import ServerInfo
from lmcache_core.kernels.choice import Kernels

RUNTIME: Final = "runtime"


@dataclass(frozen=True, slots=True)
class AdapterInUse:
    """One backend: its place, its name, and what `--l2-adapter` or the admin API said of it."""

    index: int
    name: str
    given: Mapping[str, Any]


def server_version(info: ServerInfo, kernels: Kernels) -> Version:
    return Version(
        version=info.version,
        contract=CONTRACT_VERSION,
        python=platform.python_version(),
        native=kernels.native,
        instance_id=info.instance_id,
    )


class RunningConfiguration:
    """Without secrets.  Safe from any thread."""

    def __init__(
        self,
        settings: ServerSettings,
        plugins: LoadedPlugins,
        adapters: Callable[[], Sequence[AdapterInUse]],
        changed: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """`changed`: values by name, of the settings that were changed while the server ran."""
        self._settings, self._plugins = settings, plugins
        self._adapters, self._changed = adapters, changed

    def settings(self) -> Sequence[Setting]:
        changed = self._changed()
        return [
            Setting(name=row.name, value=row.value, source=row.source, given_by=row.given_by, default=row.default)
            if row.name not in changed
            else Setting(
                name=row.name,
                value=shown_value(row.name, changed[row.name], self._plugins),
                source=RUNTIME,
                given_by="admin API",
                default=row.default,
            )
            for row in shown_settings(self._settings, self._plugins)
        ]

    def adapters(self) -> Sequence[ConfiguredAdapter]:
        return [
            ConfiguredAdapter(
                index=each.index,
                name=each.name,
                type_name=str(each.given.get("type")),
                settings=shown_adapter(each.given, self._plugins),
            )
            for each in self._adapters()
        ]

    def plugins(self) -> Sequence[PluginAnswer]:
        """As in `lmcache plugins list`, without the tracebacks, which may quote what nobody may see."""
        rows = []
        known = self._plugins.rows()
        for row, absent in zip(known, missing_modules(known), strict=True):
            about = record(row, absent)
            offers = [
                OfferRow(**{name: offer[name] for name in OfferRow.model_fields}) for offer in about.pop("offers")
            ]
            hooks = self._plugins.hooks_of(row.candidate.name)
            given = {name: value for name, value in about.items() if name in PluginAnswer.model_fields}
            rows.append(PluginAnswer(**given, offers=offers, hooks=hooks))
        return rows
