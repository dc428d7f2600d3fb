"""Imports plugins, so that nothing a plugin does at its import gets past here."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

from stevedore.named import NamedExtensionManager

from lmcache_core.app.discovery import Candidate
from lmcache_core.contracts.hookspecs import CONTRACT_VERSION, ENTRY_POINT_GROUP
from lmcache_core.model.errors import PluginLoadError

STATEMENT = "LMCACHE_PLUGIN_API"
"""What a module without a distribution says about itself, since there is no metadata to ask."""

Loaded = dict[str, ModuleType | PluginLoadError]


class _ContainedEntryPoint(EntryPoint):
    """An entry point whose import cannot end the process.

    stevedore lets an AssertionError through and knows nothing of SystemExit; both are a broken plugin here."""

    def load(self) -> Any:
        try:
            plugin = super().load()
        except (Exception, SystemExit) as error:
            raise PluginLoadError(self.name, describe(error)) from error
        if not isinstance(plugin, ModuleType):
            raise PluginLoadError(self.name, f"entry point '{self.value}' names no module but {type(plugin).__name__}")
        return plugin


class _PluginModules(NamedExtensionManager[ModuleType]):
    """stevedore, fed with the entry points that were just enumerated: its own list comes from a cache on disk, which
    can be older than the last `pip install`."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.modules: Loaded = {}
        self._entry_points: list[EntryPoint] = [
            _ContainedEntryPoint(candidate.name, candidate.module, ENTRY_POINT_GROUP) for candidate in candidates
        ]
        super().__init__(
            ENTRY_POINT_GROUP,
            names=[candidate.name for candidate in candidates],
            on_load_failure_callback=self._keep_failure,
            on_missing_entrypoints_callback=None,
        )
        for extension in self.extensions:
            module: Any = extension.plugin  # stevedore's types expect classes
            self.modules[extension.name] = module

    def list_entry_points(self) -> list[EntryPoint]:
        return self._entry_points

    def _keep_failure(self, manager: Any, entry_point: EntryPoint, error: BaseException) -> None:
        if not isinstance(error, PluginLoadError):
            error = PluginLoadError(entry_point.name, describe(error))
        self.modules[entry_point.name] = error


def load_modules(candidates: Sequence[Candidate]) -> Loaded:
    """By name, the module of each candidate, or why there is none.  Names are unique among the candidates."""
    return _PluginModules(candidates).modules if candidates else {}


def load_named_module(name: str) -> ModuleType:
    """A plugin that is only a module (`--plugin package.module`).  Raises PluginLoadError."""
    try:
        module = import_module(name)
    except (Exception, SystemExit) as error:
        raise PluginLoadError(name, describe(error)) from error
    stated = getattr(module, STATEMENT, None)
    if stated != CONTRACT_VERSION:
        says = "states no" if stated is None else f"states {stated!r} as its"
        raise PluginLoadError(
            name, f"{says} {STATEMENT}; a plugin for this server has the line {STATEMENT} = {CONTRACT_VERSION}"
        )
    return module


def describe(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
