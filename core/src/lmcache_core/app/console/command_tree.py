"""Every command line that `lmcache` takes, as one tree of argument parsers: for shells, and for docs/operating/cli.md."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from importlib import import_module

from lmcache_core.app.console.command_line import Parser
from lmcache_core.app.console.core_commands import CORE_COMMANDS


def core_parsers() -> list[Parser]:
    """Those of core's commands, in the order of `lmcache --help`.  Imports all of them."""
    return [parser for name in CORE_COMMANDS for parser in import_module(f"lmcache_core.app.commands.{name}").parsers()]


def command_tree(plugin_commands: Sequence[tuple[str, str]]) -> argparse.ArgumentParser:
    """`lmcache` with all of core's commands, and with `plugin_commands` (name and summary), whose flags only they know."""
    root = argparse.ArgumentParser("lmcache", allow_abbrev=False)
    groups = {"": root.add_subparsers(parser_class=argparse.ArgumentParser)}
    for parser in core_parsers():
        _, *words = parser.prog.split(" ")
        if len(words) == 2 and words[0] not in groups:
            group = groups[""].add_parser(words[0], help=_help(CORE_COMMANDS[words[0]]))
            groups[words[0]] = group.add_subparsers(parser_class=argparse.ArgumentParser)
        above = groups["" if len(words) == 1 else words[0]]
        about = CORE_COMMANDS[words[0]] if len(words) == 1 else parser.description or ""
        above.add_parser(words[-1], parents=[parser], add_help=False, help=_help(about))
    for name, summary in plugin_commands:
        groups[""].add_parser(name, help=_help(summary))
    help_for = groups[""].add_parser("help", help="show the help of a command")
    help_for.add_argument("command", choices=(*CORE_COMMANDS, *(name for name, _ in plugin_commands), "exit-codes"))
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
