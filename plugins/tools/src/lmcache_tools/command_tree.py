"""Every command line that `lmcache` takes, as one tree of argument parsers: for shells, and for docs/reference/cli.md."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module

from lmcache_client.errors import LMCacheError
from lmcache_core import Command, CommandParser
from lmcache_core.app.console.command_line import PluginSelection
from lmcache_core.app.console.core_commands import CORE_COMMANDS, CORE_GROUPS
from lmcache_core.app.plugins.discovery import Candidate
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.plugins.plugin_fault import describe
from lmcache_core.model.errors import PluginContractError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PluginCommand:
    """A command as users see it."""

    name: str
    """The words after `lmcache`: one word, or a group and a word."""
    summary: str
    parsers: Sequence[argparse.ArgumentParser]
    """Empty where only the command knows its flags."""


def core_parsers() -> list[CommandParser]:
    """Those of core's commands, in the order of `lmcache --help`.  Imports all of them."""
    modules = [f"{name}_{word}" if word else name for name in CORE_COMMANDS for word in CORE_GROUPS.get(name) or ("",)]
    return [parser for name in modules for parser in import_module(f"lmcache_core.app.commands.{name}").parsers()]


def plugin_commands_with_parsers(selection: PluginSelection) -> list[PluginCommand]:
    """Imports them all.  One whose parsers fail to load has none, and a warning names its plugin."""
    plugins = selection.load_for_user()
    return [
        PluginCommand(offer.name.replace(".", " "), offer.summary, _parsers_of(offer.name, plugins))
        for offer in plugins.offers(OfferKind.COMMAND)
    ]


def _parsers_of(name: str, plugins: LoadedPlugins) -> Sequence[argparse.ArgumentParser]:
    owner = plugins.owner(OfferKind.COMMAND, name)
    try:
        return _checked_parsers(name, owner, plugins)
    except LMCacheError as error:
        logger.warning("flags of a command are not known command=%s plugin=%s reason=%s", name, owner.name, error)
        return ()


def _checked_parsers(name: str, owner: Candidate, plugins: LoadedPlugins) -> Sequence[argparse.ArgumentParser]:
    program = f"lmcache {name.replace('.', ' ')}"
    try:
        run = plugins.opener(OfferKind.COMMAND, name)
        parsers = tuple(run.parsers()) if isinstance(run, Command) else ()
    except LMCacheError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginContractError(owner.name, f"its parsers failed to load: {describe(error)}") from error
    for parser in parsers:
        if not (isinstance(parser, argparse.ArgumentParser) and f"{parser.prog} ".startswith(f"{program} ")):
            raise PluginContractError(owner.name, f"{getattr(parser, 'prog', parser)!r} is not a parser of {program}")
    if len({parser.prog for parser in parsers}) < len(parsers):
        raise PluginContractError(owner.name, f"two parsers of {program} have one prog")
    return parsers


def every_parser() -> list[argparse.ArgumentParser]:
    """Core's, and those of every installed plugin that has any."""
    added = plugin_commands_with_parsers(PluginSelection())
    return [*core_parsers(), *(parser for each in added for parser in each.parsers)]


def command_tree(plugin_commands: Sequence[PluginCommand]) -> argparse.ArgumentParser:
    """`lmcache` with all of core's commands and those of plugins, with the flags that are known of these."""
    root = argparse.ArgumentParser("lmcache", allow_abbrev=False)
    groups = {"": root.add_subparsers(parser_class=argparse.ArgumentParser)}
    made: dict[str, argparse.ArgumentParser] = {}
    about = dict(CORE_COMMANDS)
    for each in plugin_commands:
        first, _, word = each.name.partition(" ")
        about[first] = f"{about[first]}, {word}" if first in about else word or each.summary

    def put(words: Sequence[str], text: str, parents: Sequence[argparse.ArgumentParser]) -> None:
        if len(words) == 2 and words[0] not in groups:
            group = made.get(words[0]) or groups[""].add_parser(words[0], help=_help(about[words[0]]))
            groups[words[0]] = group.add_subparsers(parser_class=argparse.ArgumentParser)
        above = groups["" if len(words) == 1 else words[0]]
        if len(words) > 2:  # `lmcache GROUP WORD MORE`: the shell is shown WORD alone
            return
        added = above.add_parser(words[-1], parents=list(parents), add_help=not parents, help=_help(text))
        if len(words) == 1:
            made[words[0]] = added

    for parser in core_parsers():
        _, *words = parser.prog.split(" ")
        put(words, about[words[0]] if len(words) == 1 else parser.description or "", [parser])
    for each in plugin_commands:
        if not each.parsers:
            put(each.name.split(" "), each.summary, ())
        for added in each.parsers:
            put(added.prog.split(" ")[1:], added.description or each.summary, [added])
    help_for = groups[""].add_parser("help", help="show the help of a command")
    names = dict.fromkeys((*CORE_COMMANDS, *(each.name.split(" ")[0] for each in plugin_commands), "exit-codes"))
    help_for.add_argument("command", choices=tuple(names))
    return root


def actions_called(parser: argparse.ArgumentParser, metavar: str) -> Iterator[argparse.Action]:
    """Every argument of the tree whose value the help calls so."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from actions_called(inner, metavar)
        elif action.metavar == metavar:
            yield action


def _help(text: str) -> str:
    return text.replace("%", "%%")
