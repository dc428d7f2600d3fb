"""The command line of `lmcache trace`; its mistakes are one readable line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

from lmcache_core import CommandParser, ConfigError
from lmcache_observability.trace.conversion import FORMS

COMMANDS: Final = MappingProxyType(
    {
        "info": "say what is in a recording",
        "convert": "write a recording for other tools",
        "replay": "ask a server the same again, and compare",
    }
)
_REPLAY: Final = """Ask a server the same as was recorded, verify every byte that it returns, and compare what it hits.

Prompts are made up so that they share the prefixes that the recorded ones shared, and chunks are filled with bytes that
follow from them.  Without --engine a server is started for it with the flags behind `--`, such as
`lmcache trace replay FILE -- --l1-size-gb 4 --eviction-policy SIEVE`."""


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """What was given, and the flags for a server.  Raises ConfigError for what is wrong; prints help and exits where that
    is asked for."""
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {name:<8} {about}" for name, about in COMMANDS.items()]
        usage = ["usage: lmcache trace COMMAND FILE ...", "", *lines, "", "`lmcache trace COMMAND --help` says more."]
        print("\n".join(usage))
        raise SystemExit(0 if arguments else 2)
    name = arguments[0]
    if name not in COMMANDS:
        guess = get_close_matches(name, COMMANDS, n=1)
        remedy = f"did you mean 'trace {guess[0]}'?" if guess else f"known: {', '.join(COMMANDS)}"
        raise ConfigError(f"no command is called 'trace {name[:40]}'; {remedy}")
    own, server = list(arguments[1:]), list[str]()
    if name == "replay" and "--" in own:
        server = own[own.index("--") + 1 :]
        own = own[: own.index("--")]
    given = _parser(name).parse_all(own)
    given.command = name
    return given, server


def _parser(name: str) -> CommandParser:
    about = _REPLAY if name == "replay" else f"{COMMANDS[name][:1].upper()}{COMMANDS[name][1:]}."
    parser = CommandParser(f"lmcache trace {name}", about)
    add = parser.add_argument
    add("file", metavar="FILE", help="a recording, made by `lmcache server --trace-level storage --trace-output FILE`")
    if name in ("info", "replay"):
        add("--json", action="store_true", help="print it as JSON")
    if name == "convert":
        add("--to", choices=tuple(FORMS), required=True, help="for `lmcache simulate`, for programs, for its own sake")
        add("--output", "-o", metavar="FILE", help="write it there (default: standard output)")
    if name == "replay":
        parser.remedy = "flags of the server go behind `--`"
        add("--speed", type=_speed, metavar="N", help="N times as fast as recorded (default: without pauses)")
        add("--engine", metavar="ENDPOINT", help="a server that runs already, such as tcp://127.0.0.1:5555")
        add("--chunk-bytes", type=_count, metavar="N", help="size of a chunk (default: as recorded)")
        add("--max-requests", type=_count, metavar="N", help="the first N lookups only")
    return parser


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a whole number above 0")
    return int(text)


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a number above 0")
    return speed
