"""Loads plugins and answers who offers what.

Discovery and checks of versions come first and import nothing; then the selected plugins are imported, connected and
asked for their offers.  Whatever is wrong with one of them is a row, a warning, and no harm to the others, unless the
configuration or the command line needs just that one.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any, NamedTuple

from stevedore.named import NamedExtensionManager

from lmcache_client.errors import ConfigError
from lmcache_core.app.plugins.catalogue import catalogue
from lmcache_core.app.plugins.discovery import CORE_DISTRIBUTION, Candidate, Origin, PluginRow, Status, discover
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.plugin_fault import describe, reinstall, repair, whole
from lmcache_core.app.plugins.plugin_hooks import PluginHooks
from lmcache_core.contracts.hookspecs import CONTRACT_VERSION, ENTRY_POINT_GROUP
from lmcache_core.model.errors import PluginError, PluginLoadError
from lmcache_core.model.spelling import mistyped


def load_plugins(
    selected: Sequence[str] = (), blocked: Sequence[str] = (), *, safe_mode: bool = False, strict: bool = True
) -> LoadedPlugins:
    """Find, import and connect plugins: all of them, or only the `selected` ones, but never a `blocked` one; in safe mode
    core's own alone, whatever is selected.

    Raises ConfigError for a selected name that is not there, and, where `strict`, PluginLoadError when a selected plugin
    or core's own cannot be used; a list wants to show those, too."""
    candidates = discover()
    _check_blocked(blocked)
    ignored, selected = (selected, ()) if safe_mode else ((), selected)
    modules = _named_modules(selected, candidates)
    plan = [_planned(row, selected, blocked, safe_mode) for row in _without_doubles(candidates)]
    plan += [PluginRow(module, Status.AVAILABLE) for module in modules]
    wanted = [row.candidate for row in plan if row.status is Status.AVAILABLE]
    hooks = PluginHooks(trace=os.environ.get("LMCACHE_TRACE_HOOKS", "0") not in ("", "0"))
    with redirect_stdout(sys.stderr):  # what a plugin prints must not mix with a command's output
        loaded = _PluginImports(wanted).by_name() if wanted else {}
        rows = [_connected(row, loaded, hooks) if row.status is Status.AVAILABLE else row for row in plan]
    if strict:
        _check_needed(rows, selected)
    advice = [_not_blocked(name, candidates) for name in _unknown(blocked, candidates)]
    advice += [f"--plugin {name} is not considered in safe mode" for name in ignored]
    return LoadedPlugins(hooks, rows, advice, selected)


def _check_blocked(blocked: Sequence[str]) -> None:
    if "builtin" in blocked:
        raise ConfigError(
            "--no-plugin builtin: the built-in plugin cannot be blocked, its offers are used by name only"
        )


def _named_modules(selected: Sequence[str], candidates: Sequence[Candidate]) -> list[Candidate]:
    """The plugins that are only modules, which `--plugin package.module` names."""
    unknown = _unknown(selected, candidates)
    for name in unknown:
        if "." not in name:
            raise ConfigError(_no_plugin(name, candidates))
    return [Candidate(name, name, Origin.COMMAND_LINE) for name in unknown]


def _unknown(names: Sequence[str], candidates: Sequence[Candidate]) -> list[str]:
    known = {candidate.name for candidate in candidates}
    return [name for name in dict.fromkeys(names) if name not in known]


def _no_plugin(name: str, candidates: Sequence[Candidate]) -> str:
    if distribution := catalogue().plugins.get(name):
        return f"--plugin {name}: not installed: pip install {distribution}"
    known = [candidate.name for candidate in candidates]
    guess = mistyped(name, known)
    remedy = f"did you mean '{guess}'?" if guess else f"installed: {', '.join(known)}"
    return f"--plugin {name}: no plugin is called so; {remedy} (a module is named with a dot: package.module)"


def _not_blocked(name: str, candidates: Sequence[Candidate]) -> str:
    guess = mistyped(name, [candidate.name for candidate in candidates])
    return f"--no-plugin {name}: no plugin is called so" + (f"; did you mean '{guess}'?" if guess else "")


def _without_doubles(candidates: Sequence[Candidate]) -> list[PluginRow]:
    """A row for each candidate; where several have one name none is used, except that core's own always is."""
    owners = defaultdict(list)
    for candidate in candidates:
        if candidate.mismatch is None and candidate.damage is None:
            owners[candidate.name].append(candidate)
    rows = []
    for candidate in candidates:
        rivals = [rival for rival in owners[candidate.name] if rival is not candidate]
        if candidate.mismatch or candidate.damage or not rivals or candidate.origin is Origin.BUILTIN:
            rows.append(PluginRow(candidate, Status.AVAILABLE))
            continue
        error = f"{' and '.join(each.owner for each in owners[candidate.name])} each have a plugin '{candidate.name}'"
        extra = "it" if any(rival.origin is Origin.BUILTIN for rival in rivals) else "all but one"
        remedy = f"uninstall {extra}, or rename the entry point in its pyproject.toml"
        rows.append(PluginRow(candidate, Status.DUPLICATE, error=error, remedy=remedy))
    return rows


def _planned(row: PluginRow, selected: Sequence[str], blocked: Sequence[str], safe_mode: bool) -> PluginRow:
    candidate = row.candidate
    if candidate.origin is Origin.BUILTIN and candidate.mismatch is None:
        return row
    if candidate.damage and candidate.name not in blocked:  # whatever is selected: an installation has to be repaired
        return PluginRow(candidate, Status.BROKEN, error=candidate.damage, remedy=reinstall(candidate))
    if safe_mode:
        return PluginRow(candidate, Status.BLOCKED, error="blocked by safe mode")
    if candidate.name in blocked:
        return PluginRow(candidate, Status.BLOCKED, error="blocked by --no-plugin")
    if selected and candidate.name not in selected:
        return PluginRow(candidate, Status.BLOCKED, error="not among those that --plugin names")
    if candidate.mismatch:
        remedy = f"pip install --upgrade {CORE_DISTRIBUTION} {candidate.distribution}"
        return PluginRow(candidate, Status.INCOMPATIBLE, error=candidate.mismatch, remedy=remedy)
    return row


def _connected(row: PluginRow, loaded: Mapping[str, Import], hooks: PluginHooks) -> PluginRow:
    name = row.candidate.name
    module, seconds = loaded[name]
    started = time.perf_counter()
    try:
        if isinstance(module, PluginLoadError):
            raise module
        offers, groups = hooks.connect(name, module)
    except PluginError as error:
        row = row._replace(
            status=Status.BROKEN,
            error=str(error),
            remedy=repair(row.candidate, error, module if isinstance(module, ModuleType) else None),
            traceback=whole(error),
        )
    else:
        used = any(offered.offer.default for offered in offers) or row.candidate.origin is Origin.BUILTIN
        row = row._replace(status=Status.ACTIVE if used else Status.AVAILABLE, offers=offers, groups=groups)
    return row._replace(setup_ms=(seconds + time.perf_counter() - started) * 1000)


def _check_needed(rows: Sequence[PluginRow], selected: Sequence[str]) -> None:
    """Raise for a plugin without which there is no point in starting."""
    if not any(row.candidate.origin is Origin.BUILTIN and not row.candidate.mismatch for row in rows):
        raise PluginLoadError(
            "builtin",
            f"the built-in plugin is not among the entry points of {CORE_DISTRIBUTION}: "
            f"pip install --force-reinstall {CORE_DISTRIBUTION}",
        )
    counted = Counter(row.candidate.name for row in rows if not row.unusable)
    for row in rows:
        needed = row.candidate.name in selected or row.candidate.origin is Origin.BUILTIN
        if needed and row.unusable and not counted[row.candidate.name]:
            raise PluginLoadError(row.candidate.name, str(row))


STATEMENT = "LMCACHE_PLUGIN_API"
"""What a module without a distribution says about itself, since there is no metadata to ask."""


class Import(NamedTuple):
    """What became of importing one plugin."""

    module: ModuleType | PluginLoadError
    seconds: float
    """By the clock, since that is what a start waits for."""


class _ContainedEntryPoint(EntryPoint):
    """An entry point whose import cannot end the process: whatever the plugin raises is the plugin's, and Ctrl-C alone is the
    user's.  stevedore lets an AssertionError through and knows nothing of SystemExit."""

    def load(self) -> Any:
        started = time.perf_counter()
        module: ModuleType | PluginLoadError
        try:
            module = super().load()
            self._check(module)
        except KeyboardInterrupt:
            raise
        except PluginLoadError as error:
            module = error
        except BaseException as error:  # noqa: BLE001 - a plugin's boundary
            module = PluginLoadError(self.name, describe(error))
            module.__cause__ = error
        return Import(module, time.perf_counter() - started)

    def _check(self, module: Any) -> None:
        if not isinstance(module, ModuleType):
            raise PluginLoadError(self.name, f"entry point '{self.value}' names no module but {type(module).__name__}")
        if self.group == ENTRY_POINT_GROUP:
            return
        stated = getattr(module, STATEMENT, None)
        if stated != CONTRACT_VERSION:
            says = "states no" if stated is None else f"states {stated!r} as its"
            remedy = f"a plugin for this server has the line {STATEMENT} = {CONTRACT_VERSION}"
            raise PluginLoadError(self.name, f"{says} {STATEMENT}; {remedy}")


class _PluginImports(NamedExtensionManager[Import]):
    """stevedore, fed with the entry points that were just enumerated: its own list comes from a cache on disk, which
    can be older than the last `pip install`.  Names are unique among the candidates."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._entry_points: list[EntryPoint] = [
            _ContainedEntryPoint(
                each.name, each.module, "" if each.origin is Origin.COMMAND_LINE else ENTRY_POINT_GROUP
            )
            for each in candidates
        ]
        names = [candidate.name for candidate in candidates]
        super().__init__(ENTRY_POINT_GROUP, names=names, on_missing_entrypoints_callback=None)

    def list_entry_points(self) -> list[EntryPoint]:
        return self._entry_points

    def by_name(self) -> dict[str, Import]:
        """The module of each candidate, or why there is none."""
        loaded: list[tuple[str, Any]] = [(each.name, each.plugin) for each in self.extensions]
        return dict(loaded)  # through Any: stevedore's types expect classes
