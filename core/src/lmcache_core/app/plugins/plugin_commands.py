"""`lmcache NAME`, where NAME is a command that a plugin offers.  Flags behind the name are the command's own."""

from __future__ import annotations

import logging
from argparse import ArgumentParser
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core.app.console.command_group import group_usage, unknown_word
from lmcache_core.app.console.core_commands import CORE_COMMANDS
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_core.app.plugins.discovery import Candidate
from lmcache_core.app.plugins.known_names import DISTRIBUTIONS_OF_OFFERS
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.plugins.plugin_catalog import LoadedCatalog
from lmcache_core.app.plugins.plugin_fault import place_of
from lmcache_core.app.plugins.plugin_modules import describe
from lmcache_core.app.plugins.plugin_selection import PluginSelection
from lmcache_core.contracts.command import Command, CommandContext
from lmcache_core.model.errors import PluginContractError
from lmcache_core.model.spelling import nearest

logger = logging.getLogger(__name__)

_EXIT_CODE_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class PluginCommand:
    """A command as users see it."""

    name: str
    """What stands behind `lmcache`: one word, or a group and a word."""
    summary: str
    parsers: Sequence[ArgumentParser]
    """Empty where only the command knows its flags."""


def plugin_commands(selection: PluginSelection) -> list[PluginCommand]:
    """Without their parsers, so that none of them is imported."""
    offers = selection.load_for_user().offers(OfferKind.COMMAND)
    return [PluginCommand(offer.name.replace(".", " "), offer.summary, ()) for offer in offers]


def missing_commands(installed: Collection[PluginCommand]) -> dict[str, list[str]]:
    """First words of the commands that could be installed, by the distribution that has them."""
    there = {each.name.replace(" ", ".") for each in installed}
    found: dict[str, list[str]] = {}
    for name, owner in DISTRIBUTIONS_OF_OFFERS[OfferKind.COMMAND].items():
        first, _, word = name.partition(".")
        shown = f"{first} {word}" if first in CORE_COMMANDS else first
        if name not in there and shown not in found.setdefault(owner, []):
            found[owner].append(shown)
    return {owner: names for owner, names in found.items() if names}


def plugin_commands_with_parsers(selection: PluginSelection) -> list[PluginCommand]:
    """Imports them all.  One that cannot be imported has no parsers."""
    plugins = selection.load_for_user()
    found = []
    for offer in plugins.offers(OfferKind.COMMAND):
        try:
            run = plugins.opener(OfferKind.COMMAND, offer.name)
            parsers = run.parsers() if isinstance(run, Command) else ()
        except LMCacheError as error:
            logger.warning("flags of a command are not known command=%s reason=%s", offer.name, error)
            parsers = ()
        found.append(PluginCommand(offer.name.replace(".", " "), offer.summary, parsers))
    return found


@dataclass(frozen=True, slots=True)
class AddedWords:
    """What plugins add to a group of core's."""

    group: str
    words: Mapping[str, str]
    """What each does, by its word."""
    missing: Mapping[str, str]
    """Distributions that would add a word, by that word."""

    def run(self, word: str, arguments: Sequence[str]) -> int:
        return run_plugin_command(f"{self.group}.{word}", arguments, PluginSelection())


def added_words(group: str) -> AddedWords:
    """Of every plugin that is installed: flags that choose plugins stand behind the word."""
    offers = PluginSelection().load().offers(OfferKind.COMMAND)
    begin = f"{group}."
    words = {offer.name.removeprefix(begin): offer.summary for offer in offers if offer.name.startswith(begin)}
    known = DISTRIBUTIONS_OF_OFFERS[OfferKind.COMMAND]
    absent = {name.removeprefix(begin): owner for name, owner in known.items() if name.startswith(begin)}
    return AddedWords(group, words, {word: owner for word, owner in absent.items() if word not in words})


def run_plugin_command(name: str, arguments: Sequence[str], selection: PluginSelection) -> int:
    """Run it and return its exit code.  The server's own errors pass through; any other is an LMCacheError of one line
    that says where.  Raises ConfigError, with what was probably meant or what to install, for a name that no plugin
    offers."""
    # The flags of `GROUP WORD` choose plugins themselves, and warn of what they ask for in vain.
    plugins = selection.load() if "." in name else selection.load_for_user()
    offered = {offer.name: offer.summary for offer in plugins.offers(OfferKind.COMMAND)}
    words = {each.partition(".")[2]: text for each, text in offered.items() if each.startswith(f"{name}.")}
    if words and name not in offered:
        if not arguments or arguments[0] in ("-h", "--help"):
            print("\n".join(group_usage(name, words)))
            return ExitCode.STOPPED if arguments else ExitCode.USAGE
        if arguments[0] not in words:
            raise unknown_word(name, arguments[0], words)
        name, arguments = f"{name}.{arguments[0]}", arguments[1:]
    try:
        offer = plugins.offer(OfferKind.COMMAND, name)
    except ConfigError as error:
        known = [*CORE_COMMANDS, *dict.fromkeys(each.partition(".")[0] for each in offered)]
        absent = DISTRIBUTIONS_OF_OFFERS[OfferKind.COMMAND]
        if name in absent:
            raise
        if distribution := next((absent[each] for each in absent if each.startswith(f"{name}.")), None):
            raise ConfigError(f"'lmcache {name}' is not installed: pip install {distribution}") from error
        owners = {each.partition(".")[0]: owner for each, owner in absent.items()}
        guess = nearest(name, [*known, *(each for each in owners if each not in known)])
        remedy = f"did you mean '{guess}'?" if guess else f"known: {', '.join(known)}"
        remedy += f" (pip install {owners[guess]})" if guess and guess not in known else ""
        unusable = plugins.unusable()
        more = f"{'' if remedy.endswith('?') else '.'} {unusable}" if unusable else ""
        raise ConfigError(f"no command is called '{name}'; {remedy}{more}") from error
    owner = plugins.owner(OfferKind.COMMAND, name)
    run = plugins.opener(OfferKind.COMMAND, name)
    try:
        code = run(tuple(arguments), CommandContext(LoadedCatalog(plugins)))
    except (LMCacheError, BrokenPipeError):  # said well already, and no fault of anybody
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


def _failed(name: str, owner: Candidate, error: Exception) -> str:
    place = place_of(error, owner)
    where = f" ({place})" if place else ""
    return f"command '{name}' of plugin '{owner.name}' ({owner.owner}) failed: {describe(error)}{where}"
