"""`lmcache NAME`, where NAME is a command that a plugin offers.  Flags behind the name are the command's own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core.app.console.command_line import PluginSelection, command_selection
from lmcache_core.app.console.core_commands import CORE_COMMANDS, CORE_GROUPS
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_core.app.plugins.catalogue import catalogue
from lmcache_core.app.plugins.discovery import Candidate
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.plugins.plugin_fault import describe, place_of
from lmcache_core.contracts.command import CommandContext
from lmcache_core.contracts.offer import Offer
from lmcache_core.model.errors import PluginContractError, PluginError
from lmcache_core.model.spelling import nearest

_EXIT_CODE_MAX: Final = 255


def missing_commands(plugins: LoadedPlugins) -> dict[str, list[str]]:
    """What could be installed, as it is shown below `lmcache`, by the distribution that has it."""
    found: dict[str, list[str]] = {}
    for name, owner in _absent(plugins).items():
        first, _, word = name.partition(".")
        shown = f"{first} {word}" if first in CORE_COMMANDS else first
        if shown not in found.setdefault(owner, []):
            found[owner].append(shown)
    return found


def _absent(plugins: LoadedPlugins) -> dict[str, str]:
    """Distributions that are not installed, by the names of their commands."""
    there = {row.candidate.distribution for row in plugins.rows()}
    known = catalogue().offers_of(OfferKind.COMMAND)
    return {name: owner for name, owner in known.items() if owner not in there}


def _words_of(group: str, plugins: LoadedPlugins) -> dict[str, str]:
    return _words(group, {offer.name: offer.summary for offer in plugins.offers(OfferKind.COMMAND)})


def _words(group: str, names: Mapping[str, str]) -> dict[str, str]:
    begin = f"{group}."
    return {name.removeprefix(begin): about for name, about in names.items() if name.startswith(begin)}


def run_plugin_command(name: str, arguments: Sequence[str], selection: PluginSelection) -> int:
    """Run it and return its exit code.  The server's own errors pass through; any other is an LMCacheError of one line
    that says where.  Raises ConfigError, with what was probably meant or what to install, for a name that no plugin
    offers."""
    plugins = selection.load_for_user()
    if words := _words_of(name, plugins):
        return _run_word(name, words, arguments, plugins)
    return _run(name, arguments, plugins)


def run_word_of_plugin(group: str, arguments: Sequence[str]) -> int:
    """The same for a word that plugins may have added to a group of core's; without one, a page of all words."""
    plugins = command_selection().load()
    return _run_word(group, {**CORE_GROUPS[group], **_words_of(group, plugins)}, arguments, plugins)


def _run_word(group: str, words: Mapping[str, str], arguments: Sequence[str], plugins: LoadedPlugins) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        missing = _words(group, _absent(plugins))
        width = max(map(len, (*words, *missing)))
        print(f"usage: lmcache {group} COMMAND ...\n")
        for word, about in (*words.items(), *((word, f"(pip install {owner})") for word, owner in missing.items())):
            print(f"  {word:<{width}}  {about}")
        print(f"\n`lmcache {group} COMMAND --help` says more.")
        return ExitCode.STOPPED if arguments else ExitCode.USAGE
    if arguments[0] not in words:
        raise _unknown(f"{group}.{arguments[0]}", words, plugins)
    return _run(f"{group}.{arguments[0]}", arguments[1:], plugins)


def _run(name: str, arguments: Sequence[str], plugins: LoadedPlugins) -> int:
    try:
        offer = plugins.offer(OfferKind.COMMAND, name)
    except ConfigError as error:
        firsts = (each.name.partition(".")[0] for each in plugins.offers(OfferKind.COMMAND))
        raise _unknown(name, dict.fromkeys((*CORE_COMMANDS, *firsts)), plugins) from error
    owner = plugins.owner(OfferKind.COMMAND, name)
    run = plugins.opener(OfferKind.COMMAND, name)
    try:
        code = run(tuple(arguments), CommandContext(LoadedCatalog(plugins)))
    except (LMCacheError, BrokenPipeError):  # already a clear message, and not a fault of the plugin
        raise
    except Exception as error:
        raise LMCacheError(_failed(name, owner, error)) from error
    if not isinstance(code, int) or isinstance(code, bool):
        raise PluginContractError(
            owner.name, f"command '{name}' ('{offer.open}') returned {type(code).__name__} where an exit code belongs"
        )
    if not 0 <= code <= _EXIT_CODE_MAX:  # the system would keep its last eight bits: 256 would be a success
        raise PluginContractError(
            owner.name, f"command '{name}' ('{offer.open}') returned {code}; an exit code is 0 to {_EXIT_CODE_MAX}"
        )
    return code


def _unknown(name: str, beside: Collection[str], plugins: LoadedPlugins) -> LMCacheError:
    """The most useful error for an unknown command: it can be installed, its plugin cannot be used, or another one was meant,
    one of those `beside` it, perhaps."""
    absent = _absent(plugins)
    known = (each for each in catalogue().offers_of(OfferKind.COMMAND) if f"{each}.".startswith(f"{name}."))
    look_for = next(known, name)  # for a group, one of its commands
    if owner := absent.get(look_for):
        return ConfigError(f"'lmcache {name.replace('.', ' ')}' is not installed: pip install {owner}")
    try:
        plugins.offer(OfferKind.COMMAND, look_for)
    except PluginError as error:  # it is broken, or two have it
        return error
    except ConfigError as error:
        if f"{OfferKind.COMMAND}:{look_for}" in catalogue().offers:
            return error
    group, _, word = name.rpartition(".")
    missing = {each.partition(".")[0]: owner for each, owner in (_words(group, absent) if group else absent).items()}
    meant = nearest(word, [*beside, *(each for each in missing if each not in beside)])
    before = f"{group} " if group else ""
    there = f"known: {', '.join(beside)}" if beside else f"see `lmcache {group} --help`"
    remedy = f"did you mean '{before}{meant}'?" if meant else there
    remedy += f" (pip install {missing[meant]})" if meant and meant not in beside else ""
    unusable = plugins.unusable()
    more = f"{'' if remedy.endswith('?') else '.'} {unusable}" if unusable else ""
    return ConfigError(f"no command is called '{before}{word}'; {remedy}{more}")


def _failed(name: str, owner: Candidate, error: Exception) -> str:
    place = place_of(error, owner)
    where = f" ({place})" if place else ""
    return f"command '{name}' of plugin '{owner.name}' ({owner.owner}) failed: {describe(error)}{where}"


_OPENED_ALONE: Final = (
    OfferKind.EVICTION_POLICY,
    OfferKind.STORE_POLICY,
    OfferKind.PREFETCH_POLICY,
    OfferKind.SUBSCRIBER,
)


class LoadedCatalog:
    """The loaded plugins by the words that a command's author knows.  One thread, that of the command."""

    def __init__(self, plugins: LoadedPlugins) -> None:
        self._plugins = plugins

    def offers(self, kind: str) -> Sequence[Offer]:
        return self._plugins.offers(self._kind(kind))

    def open(self, kind: str, name: str, settings: Mapping[str, Any]) -> Any:
        wanted = self._kind(kind)
        if wanted in list(OfferKind) and wanted not in _OPENED_ALONE:
            raise ConfigError(
                f"{wanted.label} '{name}' needs a running server; a command can open a policy or a subscriber"
            )
        # here, because listing commands must not pay for pydantic
        from lmcache_core.app.offer_specs import offer_spec

        return offer_spec(self._plugins, wanted, name, settings, f"{wanted.label} '{name}'").open(self._plugins)

    def _kind(self, word: str) -> OfferKind:
        if word not in self._plugins.kinds:
            raise ConfigError(f"no kind of offer is called '{word}'; known: {', '.join(self._plugins.kinds)}")
        return OfferKind(word)
