"""`lmcache completion`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.console.command_line import add_selection_flags, selection_of
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_tools.command_tree import actions_called, command_tree, plugin_commands_with_parsers

_INSTALLS: Final = {
    "bash": "~/.local/share/bash-completion/completions/lmcache",
    "zsh": "a file called _lmcache in a folder of $fpath",
    "fish": "~/.config/fish/completions/lmcache.fish",
}


def parsers() -> list[CommandParser]:
    where = "; ".join(f"{shell}: {place}" for shell, place in _INSTALLS.items())
    parser = CommandParser(
        "lmcache completion",
        "Print a script that makes a shell complete commands and flags, those of the plugins that are installed now among "
        "them.  The script looks at no plugin itself; write it again after installing one.",
    )
    parser.add_argument("shell", choices=tuple(_INSTALLS), help=f"where the script goes: {where}")
    add_selection_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    import shtab  # here, so that only this command pays for it

    tree = command_tree(plugin_commands_with_parsers(selection_of(given)))
    for metavar, kind in (("FILE", shtab.FILE), ("PATH", shtab.FILE), ("DIR", shtab.DIRECTORY)):
        for action in actions_called(tree, metavar):
            action.complete = kind  # type: ignore[attr-defined]
    print(shtab.complete(tree, shell=given.shell))
    return ExitCode.STOPPED


COMMAND: Final = Command(run, parsers)
