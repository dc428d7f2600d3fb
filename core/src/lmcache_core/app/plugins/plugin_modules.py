"""Imports plugins, so that nothing a plugin does at its import gets past here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any, NamedTuple

from stevedore.named import NamedExtensionManager

from lmcache_core.app.plugins.discovery import Candidate
from lmcache_core.contracts.hookspecs import CONTRACT_VERSION, ENTRY_POINT_GROUP
from lmcache_core.model.errors import PluginLoadError, error_message

STATEMENT = "LMCACHE_PLUGIN_API"
"""What a module without a distribution says about itself, since there is no metadata to ask."""


class Import(NamedTuple):
    """What became of importing one plugin."""

    module: ModuleType | PluginLoadError
    seconds: float
    """By the clock, since that is what a start waits for."""


class _ContainedEntryPoint(EntryPoint):
    """An entry point whose import cannot end the process.

    stevedore lets an AssertionError through and knows nothing of SystemExit; both are a broken plugin here."""

    def load(self) -> Any:
        return _contained(self.name, super().load, self._must_be_module)

    def _must_be_module(self, plugin: Any) -> None:
        if not isinstance(plugin, ModuleType):
            raise PluginLoadError(self.name, f"entry point '{self.value}' names no module but {type(plugin).__name__}")


class _PluginImports(NamedExtensionManager[Import]):
    """stevedore, fed with the entry points that were just enumerated: its own list comes from a cache on disk, which
    can be older than the last `pip install`."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._entry_points: list[EntryPoint] = [
            _ContainedEntryPoint(candidate.name, candidate.module, ENTRY_POINT_GROUP) for candidate in candidates
        ]
        names = [candidate.name for candidate in candidates]
        super().__init__(ENTRY_POINT_GROUP, names=names, on_missing_entrypoints_callback=None)

    def list_entry_points(self) -> list[EntryPoint]:
        return self._entry_points

    def by_name(self) -> dict[str, Import]:
        loaded: list[tuple[str, Any]] = [(each.name, each.plugin) for each in self.extensions]
        return dict(loaded)  # through Any: stevedore's types expect classes


def load_modules(candidates: Sequence[Candidate]) -> Mapping[str, Import]:
    """By name, the module of each candidate, or why there is none.  Names are unique among the candidates."""
    return _PluginImports(candidates).by_name() if candidates else {}


def load_named_module(name: str) -> Import:
    """A plugin that is only a module (`--plugin package.module`)."""
    return _contained(name, lambda: import_module(name), lambda module: _must_state_contract(name, module))


def _must_state_contract(name: str, module: ModuleType) -> None:
    stated = getattr(module, STATEMENT, None)
    if stated != CONTRACT_VERSION:
        says = "states no" if stated is None else f"states {stated!r} as its"
        raise PluginLoadError(
            name, f"{says} {STATEMENT}; a plugin for this server has the line {STATEMENT} = {CONTRACT_VERSION}"
        )


def _contained(name: str, load: Callable[[], Any], check: Callable[[Any], None]) -> Import:
    """Whatever the plugin raises is the plugin's; Ctrl-C alone is the user's, and passes."""
    begun = time.perf_counter()
    module: ModuleType | PluginLoadError
    try:
        module = load()
        check(module)
    except KeyboardInterrupt:
        raise
    except PluginLoadError as error:
        module = error
    except BaseException as error:  # noqa: BLE001 - a plugin's boundary
        module = PluginLoadError(name, describe(error))
        module.__cause__ = error
    return Import(module, time.perf_counter() - begun)


def describe(error: BaseException) -> str:
    """The first line of an exception, with its type."""
    lines = [text for line in error_message(error).splitlines() if (text := " ".join(line.split()))]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
