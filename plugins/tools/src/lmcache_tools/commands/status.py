"""`lmcache status`"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from lmcache_client.errors import ConfigError
from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_tools.admin_client import AdminClient, add_admin_flags
from lmcache_tools.output import PageOutput, output_of
from lmcache_tools.page import Page, Table
from lmcache_tools.status_page import Sample, status_page


def parsers() -> list[CommandParser]:
    parser = CommandParser(
        "lmcache status", "Show how a running server is, what it holds and for which tenants, and what it does."
    )
    parser.add_argument(
        "--watch", type=float, metavar="SECONDS", help="again and again, with rates; until Ctrl-C or --times"
    )
    parser.add_argument("--times", type=int, metavar="N", help="with --watch: how often (default: until Ctrl-C)")
    parser.add_argument("--full", action="store_true", help="every figure that the server gives, one per line")
    add_admin_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    """Exit code 1 when the server is degraded or unhealthy."""
    given = parsers()[0].parse_all(arguments)
    _check(given)
    client, output = AdminClient.of(given), output_of(given)
    if given.watch is None:
        sample = _sample(client)
        output.show(sample.status, partial(_page, given, sample, None))
        return _code(sample)
    return _watch(given, client, output)


def _check(given: argparse.Namespace) -> None:
    if given.watch is not None and not 0.1 <= given.watch <= 86400:
        raise ConfigError(f"--watch {given.watch:g}: expected seconds from 0.1 to 86400")
    if given.times is not None and (given.watch is None or given.times < 1):
        raise ConfigError("--times: expected at least 1, and --watch with it")


def _watch(given: argparse.Namespace, client: AdminClient, output: PageOutput) -> ExitCode:
    before, times = None, given.times
    try:
        while True:
            sample = _sample(client)
            output.show_next(sample.status, partial(_page, given, sample, before))
            before, times = sample, None if times is None else times - 1
            if times == 0:
                return _code(sample)
            time.sleep(given.watch)
    except KeyboardInterrupt:  # which is how watching ends
        return ExitCode.STOPPED


def _sample(client: AdminClient) -> Sample:
    return Sample(client.ask("GET", "/status"), time.monotonic())


def _code(sample: Sample) -> ExitCode:
    return ExitCode.FAILED if sample.status.get("healthy") is False else ExitCode.STOPPED


def _page(given: argparse.Namespace, now: Sample, before: Sample | None) -> Page:
    return [Table(("FIGURE", "VALUE"), list(_figures(now.status)))] if given.full else status_page(now, before)


def _figures(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Nested values as (dotted path, text)."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _figures(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for index, inner in enumerate(value):
            yield from _figures(inner, f"{path}[{index}]")
    elif isinstance(value, dict | list):
        yield path, ", ".join(map(str, value)) or "-"
    else:
        yield path, "-" if value in (None, "") else str(value)


COMMAND: Final = Command(run, parsers)
