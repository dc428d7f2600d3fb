"""`lmcache plugins new`"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lmcache_client.errors import ConfigError
from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.model.spelling import nearest
from lmcache_devkit.new_plugin import KINDS, write_plugin


def parsers() -> list[CommandParser]:
    parser = CommandParser("lmcache plugins new", "Write a plugin that works, to start one of your own from.")
    parser.add_argument("kind", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("name", metavar="NAME", help="what users will write in their configuration, such as acme")
    parser.add_argument("--into", metavar="DIR", default=".", help="where its folder is made (default: here)")
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    if not arguments:
        raise ConfigError(f"say what to write: lmcache plugins new KIND NAME; kinds: {', '.join(KINDS)}")
    given = parsers()[0].parse_all(arguments)
    new = write_plugin(_kind(given.kind), given.name, Path(given.into))
    extra = shlex.quote(f"{new.folder}[testing]")
    print(f"wrote {new.folder}; to go on:\n\n  pip install -e {extra}\n  {new.check}")
    return ExitCode.STOPPED


def _kind(word: str) -> OfferKind:
    if word in KINDS:
        return OfferKind(word)
    guess = nearest(word, KINDS)
    remedy = f"did you mean '{guess}'?" if guess else f"known: {', '.join(KINDS)}"
    raise ConfigError(f"no kind of plugin is called '{word}'; {remedy}")


NEW: Final = Command(run, parsers)
