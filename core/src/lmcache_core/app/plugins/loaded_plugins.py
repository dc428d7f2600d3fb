"""The connected plugins, as the composition root asks for them."""

from __future__ import annotations

import logging
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core.app.console.core_commands import is_core_command
from lmcache_core.app.plugins.catalogue import catalogue
from lmcache_core.app.plugins.discovery import Candidate, Origin, PluginRow, Status
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.plugins.plugin_fault import describe, install_again, place_of, way_around, whole
from lmcache_core.app.plugins.plugin_hooks import PluginHooks
from lmcache_core.contracts.offer import Offer
from lmcache_core.model.errors import PluginContractError, PluginError, PluginLoadError
from lmcache_core.model.spelling import mistyped

if TYPE_CHECKING:
    from lmcache_core.app.settings import LoadedGroup, MissingSetting
    from lmcache_core.contracts.server_view import ServerInfo
    from lmcache_core.contracts.settings import PluginSettings

logger = logging.getLogger(__name__)

Key = tuple[OfferKind, str]
"""What names an offer: its kind, and its name among those of the kind."""


class LoadedPlugins:
    """Who offers what, fixed once loading is over.  Used by the thread that starts and stops the server; `rows` by any."""

    def __init__(
        self, hooks: PluginHooks, rows: Sequence[PluginRow], advice: Sequence[str], selected: Collection[str] = ()
    ) -> None:
        self._hooks = hooks
        self._selected = frozenset(selected)
        self._groups: tuple[LoadedGroup, ...] | None = None
        self._used: set[str] = set()
        self._set_aside: dict[str, PluginRow] = {}
        owners: dict[Key, list[tuple[Candidate, Offer]]] = defaultdict(list)
        for row in rows:
            for offered in row.offers:
                owners[offered.kind, offered.offer.name].append((row.candidate, offered.offer))
        commands = {name: found[0][0].name for (kind, name), found in owners.items() if kind is OfferKind.COMMAND}
        self._group_clashes = {(OfferKind.COMMAND, name): line for name, line in _group_clashes(commands).items()}
        conflicts = {key: line for key, offers in owners.items() if (line := _conflict(key, offers))}
        conflicts |= self._group_clashes
        self._owners = {key: _rightful(offers) for key, offers in owners.items() if not _is_core_command(key)}
        self._rows = tuple(row._replace(conflicts=_conflicts_of(row, conflicts)) for row in rows)
        self.advice = tuple(advice)
        """Those of the warnings that are about what was asked for, and that no row shows."""
        self.warnings = [*_said_of(rows), *self.advice, *dict.fromkeys(conflicts.values())]
        """Lines for the log: what is wrong with plugins, although the server can do without them."""

    def rows(self) -> tuple[PluginRow, ...]:
        """Every plugin that was found, loaded or not; those whose offers were opened are active."""
        return tuple(map(self._now, self._rows))

    def hooks_of(self, name: str) -> list[str]:
        """The hooks that a plugin has a function for; none for one that is not in use."""
        return self._hooks.hooks_of(name)

    def unusable(self) -> str:
        """A sentence that names the plugins which may have what is looked for, and cannot say so; empty without any."""
        rows = [str(row) for row in self._rows if row.unusable]
        return f"Unusable: {'; '.join(rows)}" if rows else ""

    @property
    def kinds(self) -> tuple[OfferKind, ...]:
        """Core's, and those that other distributions define and some plugin offers something of."""
        return tuple(dict.fromkeys((*OfferKind, *sorted(kind for kind, _ in self._owners))))

    def offers(self, kind: str) -> tuple[Offer, ...]:
        """All offers of a kind that can be used, sorted by name."""
        wanted = [key for key in self._owners if key[0] == OfferKind(kind) and key not in self._group_clashes]
        named = sorted((name, self._owners[of, name]) for of, name in wanted)
        return tuple(found[0][1] for _, found in named if len(found) == 1)

    def defaults(self, kind: str) -> tuple[Offer, ...]:
        """The offers of a kind that are active without being named."""
        return tuple(offer for offer in self.offers(kind) if offer.default)

    def offer(self, kind: str, name: str) -> Offer:
        """The offer of this name.  Raises ConfigError when there is none, PluginLoadError when the plugin that should
        have it is unusable, PluginContractError when two plugins have it."""
        return self._find(OfferKind(kind), name)[1]

    def owner(self, kind: str, name: str) -> Candidate:
        """The plugin that has this offer.  Raises as `offer` does."""
        return self._find(OfferKind(kind), name)[0]

    def model(self, kind: str, name: str) -> type[PluginSettings] | None:
        """The offer's settings model, None when it takes no settings.  Imports it."""
        candidate, offer = self._find(OfferKind(kind), name)
        if offer.settings is None:
            return None
        # here, because listing plugins must not pay for pydantic
        from lmcache_core.contracts.settings import PluginSettings

        with redirect_stdout(sys.stderr):  # what its module prints must not mix with a command's output
            model = resolve(candidate, OfferKind(kind), offer, offer.settings)
        if not (isinstance(model, type) and issubclass(model, PluginSettings)):
            raise PluginContractError(
                candidate.name,
                f"{OfferKind(kind).label} '{name}' ({candidate.owner}): '{offer.settings}' is not a PluginSettings model",
            )
        return model

    def opener(self, kind: str, name: str) -> Callable[..., Any]:
        """The offer's `open`, imported.  Raises PluginLoadError where that cannot be done."""
        candidate, offer = self._find(OfferKind(kind), name)
        function: Callable[..., Any] = resolve(candidate, OfferKind(kind), offer, offer.open)
        return function

    def open(self, kind: str, name: str, *arguments: Any) -> Any:
        """Call the offer's `open` with what the hook's docstring says: settings first, then the context, if any.

        The server's own errors pass through; any other is a PluginLoadError with the remedy."""
        candidate, offer = self._find(OfferKind(kind), name)
        function = self.opener(kind, name)
        try:
            opened = function(*arguments)
        except LMCacheError:
            raise
        except (Exception, SystemExit) as error:
            raise PluginLoadError(candidate.name, cannot_open(candidate, OfferKind(kind), offer, error)) from error
        self._used.add(candidate.name)
        return opened

    def setting_groups(self) -> tuple[LoadedGroup, ...]:
        """The settings that plugins bring, their models imported.  A group that fails to load is left out and its plugin is
        broken from then on, and a group whose names are those of another one is left out with a warning, unless the
        configuration selects the plugin: then it raises PluginError."""
        if self._groups is None:
            self._groups = self._loaded_groups() if any(row.groups for row in self._rows) else ()
        return self._groups

    def missing_setting(self, name: str, subject: str) -> MissingSetting | None:
        """Why a setting that `subject` gives has no effect, and what to do; None for one that is unknown."""
        # here, because listing plugins must not pay for pydantic
        from lmcache_core.app.settings import MissingSetting

        known = catalogue().settings.get(name)
        if known is None:
            return None
        for row in self.rows():
            if row.candidate.distribution == known.distribution and row.candidate.name == known.plugin:
                text = f"{subject} is a setting of plugin '{known.plugin}', which is {row.error or row.status}"
                is_blocked = row.status is Status.BLOCKED
                return MissingSetting(text if is_blocked else f"{subject} has no effect: {row}", is_blocked)
        return MissingSetting(f"{subject} belongs to {known.distribution}: pip install {known.distribution}", False)

    def _loaded_groups(self) -> tuple[LoadedGroup, ...]:
        # here, because listing plugins must not pay for pydantic
        from lmcache_core.app.settings import ServerSettings, clashes, load_group

        groups = []
        for row in self._rows:
            try:
                with redirect_stdout(sys.stderr):
                    groups += [load_group(row.candidate, group) for group in row.groups]
            except PluginError as error:
                if row.candidate.name in self._selected:
                    raise
                self._break(row.candidate, error)
        found = clashes(groups, ServerSettings.model_fields)
        for index, clash in found.items():
            plugin = groups[index].plugin
            if plugin and plugin.name in self._selected:
                raise PluginContractError(plugin.name, clash)
        self.warnings += dict.fromkeys(found.values())
        return tuple(group for index, group in enumerate(groups) if index not in found)

    def set_aside(self, kind: str, name: str, error: LMCacheError) -> None:
        """Say that the server does without this offer, which was not asked for: its plugin is broken from then on."""
        self._break(self.owner(kind, name), error)

    def _break(self, candidate: Candidate, error: LMCacheError) -> None:
        (row,) = [row for row in self._rows if row.candidate is candidate]
        remedy = way_around(candidate, error)
        row = row._replace(status=Status.BROKEN, error=str(error), remedy=remedy, traceback=whole(error))
        self._set_aside.setdefault(candidate.name, row)
        logger.warning("%s", row)
        logger.debug("why it is not used", exc_info=error)

    def started(self, server: ServerInfo) -> None:
        """Notify every plugin that the engine port answers."""
        self._notify("lmcache_server_started", server)

    def stopping(self, server: ServerInfo) -> None:
        """Notify every plugin that the server is about to stop."""
        self._notify("lmcache_server_stopping", server)

    def _now(self, row: PluginRow) -> PluginRow:
        name = row.candidate.name
        if row.status in (Status.ACTIVE, Status.AVAILABLE) and name in self._set_aside:
            return self._set_aside[name]
        return row._replace(status=Status.ACTIVE) if row.status is Status.AVAILABLE and name in self._used else row

    def _notify(self, hook: str, server: ServerInfo) -> None:
        for name in self._hooks.names:
            try:
                self._hooks.call(name, hook, server=server)
            except (Exception, SystemExit):  # a plugin's fault at start or stop is not the server's
                logger.exception("plugin failed plugin=%s hook=%s", name, hook)

    def _find(self, kind: OfferKind, name: str) -> tuple[Candidate, Offer]:
        found = self._owners.get((kind, name), [])
        if found and (kind, name) in self._group_clashes:
            raise PluginContractError(found[0][0].name, self._group_clashes[kind, name])
        if len(found) > 1:
            raise PluginContractError(found[0][0].name, _clash((kind, name), found))
        return found[0] if found else self._missing(kind, name)

    def _missing(self, kind: OfferKind, name: str) -> tuple[Candidate, Offer]:
        """Raise what says most about why there is no such offer."""
        known = catalogue().offers_of(kind)
        distribution = known.get(name)
        plugin_names = (name, f"{kind.prefix}_{name}")
        for row in self._rows:
            if row.candidate.name in plugin_names or (distribution and distribution == row.candidate.distribution):
                if row.unusable:
                    raise PluginLoadError(row.candidate.name, f"{kind.label} '{name}' is not available: {row}")
                if row.status is Status.BLOCKED:
                    raise ConfigError(
                        f"{kind.label} '{name}' is not available: plugin '{row.candidate.name}' is {row.error}"
                    )
        installed = [f"{own} ({found[0][0].owner})" for (of, own), found in sorted(self._owners.items()) if of == kind]
        lines = [f"no {kind.label} is called '{name}'", f"Installed: {', '.join(installed) or 'none'}"]
        absent = {own: owner for own, owner in known.items() if (kind, own) not in self._owners}
        if distribution:
            lines.append(f"Known but not installed: {name} -> pip install {distribution}")
        elif guess := mistyped(name, [*absent, *(own for of, own in self._owners if of == kind)]):
            lines[0] += f"; did you mean '{guess}'?" if guess not in absent else ""
            lines += [f"Known but not installed: {guess} -> pip install {absent[guess]}"] if guess in absent else []
        if unusable := self.unusable():
            lines.append(unusable)
        raise ConfigError(" ".join(line if line.endswith("?") else f"{line}." for line in lines).removesuffix("."))


def _said_of(rows: Sequence[PluginRow]) -> list[str]:
    broken = [str(row) for row in rows if row.unusable]
    slow = [f"plugin '{row.candidate.name}' ({row.candidate.owner}) {row.slowness}" for row in rows if row.slowness]
    return broken + slow


def _rightful(offers: list[tuple[Candidate, Offer]]) -> list[tuple[Candidate, Offer]]:
    """Core's names are core's; any other name belongs to the only plugin that has it."""
    return [found for found in offers if found[0].origin is Origin.BUILTIN] or offers


def _is_core_command(key: Key) -> bool:
    return key[0] is OfferKind.COMMAND and is_core_command(key[1])


def _conflict(key: Key, offers: list[tuple[Candidate, Offer]]) -> str | None:
    if _is_core_command(key):
        owners = " and ".join(f"plugin '{candidate.name}' ({candidate.owner})" for candidate, _ in offers)
        return f"command '{key[1]}' of {owners} is not used: the name is that of a command of core"
    return _clash(key, offers) if len(offers) > 1 else None


def _group_clashes(owners: Mapping[str, str]) -> dict[str, str]:
    """`lmcache quota` cannot be a command and a group of commands: by each of the names, what is wrong.  `owners`: plugins by
    the names of their commands."""
    clashes: dict[str, str] = {}
    for name in owners:
        if words := [each for each in owners if each.startswith(f"{name}.")]:
            plugins = dict.fromkeys(owners[each] for each in (name, *words))
            remedy = " or ".join(f"--no-plugin {plugin}" for plugin in plugins)
            line = (
                f"the command '{name.replace('.', ' ')}' of plugin '{owners[name]}' and the group of "
                f"'{words[0].replace('.', ' ')}' of plugin '{owners[words[0]]}' exclude each other, and none is used: "
                f"leave one out with {remedy}"
            )
            clashes |= dict.fromkeys((name, *words), line)
    return clashes


def _conflicts_of(row: PluginRow, conflicts: Mapping[Key, str]) -> tuple[str, ...]:
    keys = [(offered.kind, offered.offer.name) for offered in row.offers]
    return tuple(conflicts[key] for key in keys if key in conflicts)


def _clash(key: Key, offers: list[tuple[Candidate, Offer]]) -> str:
    kind, name = key
    owners = " and ".join(f"plugin '{candidate.name}' ({candidate.owner})" for candidate, _ in offers)
    kept = _rightful(offers)
    if len(kept) == 1:
        return f"{kind.label} '{name}' is offered by {owners}; the name is that of {kept[0][0].owner}, which is used"
    names = " or ".join(f"--no-plugin {candidate.name}" for candidate, _ in offers)
    return f"{kind.label} '{name}' is offered by {owners}; none of them is used: leave all but one out with {names}"


def resolve(candidate: Candidate, kind: OfferKind, offer: Offer, target: str) -> Any:
    """What `target`, an import string of the offer, names.  Raises PluginLoadError; the server's own errors pass."""
    module, _, name = target.partition(":")
    try:
        return getattr(import_module(module), name)
    except LMCacheError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginLoadError(candidate.name, cannot_open(candidate, kind, offer, error)) from error


def cannot_open(candidate: Candidate, kind: OfferKind, offer: Offer, error: BaseException) -> str:
    """One line that names the offer, its owner, the error, and where in the plugin's code that happened."""
    subject = f"{kind.label} '{offer.name}' ({candidate.owner}) cannot be opened"
    place = place_of(error, candidate)
    where = f" ({place})" if place else ""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return f"{subject}: {describe(error)}{where}"
    if error.name.partition(".")[0] == candidate.module.partition(".")[0]:
        owner = candidate.distribution or f"plugin '{candidate.name}'"
        return f"{subject}: {_asks_for(offer, error.name)} module {error.name}, which {owner} does not have{where}"
    remedy = f"; something it needs is not installed: {install_again(candidate)}" if candidate.distribution else ""
    return f"{subject}: {describe(error)}{where}{remedy}"


def _asks_for(offer: Offer, module: str) -> str:
    """Who asks for a module that is not there: one of the offer's import strings, or the code behind them."""
    for part, target in (("open", offer.open), ("settings", offer.settings or "")):
        if f"{target.partition(':')[0]}.".startswith(f"{module}."):
            return f"{part} names"
    return "its code imports"
