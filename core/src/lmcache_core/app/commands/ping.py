"""`lmcache ping`"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Final

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core.app.console.admin_client import AdminClient, add_admin_flags, default_url
from lmcache_core.app.console.command_line import Parser
from lmcache_core.app.console.command_output import CommandOutput
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_core.app.console.page import Line, Mood, Table
from lmcache_core.app.console.round_trips import RoundTrips, admin_trips, engine_port_trips, engine_trips

_COUNT_MAX: Final = 1000
_ENGINE_URL: Final = "http://localhost:8000"


def parsers() -> list[Parser]:
    parser = Parser(
        "lmcache ping", "Ask whether a server answers, and how fast.  Without a word, its engine port alone."
    )
    parser.add_argument(
        "what",
        nargs="?",
        choices=("kvcache", "engine"),
        help="kvcache: engine port and admin API of a cache server; engine: an inference engine's HTTP server",
    )
    parser.add_argument("--host", help="where the engine port is (default: as the admin API says, else localhost)")
    parser.add_argument("--port", type=int, help="the engine port (default: as the admin API says, else 5555)")
    parser.add_argument(
        "--timeout-seconds", default=5.0, type=float, help="how long to wait for one answer (default: 5)"
    )
    parser.add_argument("--count", default=5, type=int, metavar="N", help="how often to ask each (default: 5)")
    add_admin_flags(parser)
    parser.set_defaults(url=None)
    return [parser]


def run(arguments: Sequence[str]) -> ExitCode:
    """Exit code 0 when everything that was asked answers in time and is well, 1 when not."""
    given = parsers()[0].parse_all(arguments)
    _check(given)
    trips = _trips(given)
    if any(each.seconds for each in trips) or given.format == "json":
        answer = {"healthy": not any(each.fault for each in trips), "pings": [each.record() for each in trips]}
        CommandOutput.of(given).show(answer, lambda: [_table(trips)])
    if faults := [each.fault for each in trips if each.fault]:
        raise LMCacheError("; ".join(faults))
    return ExitCode.STOPPED


def _check(given: argparse.Namespace) -> None:
    if given.port is not None and not 0 < given.port < 65536:
        raise ConfigError(f"--port must be 1 to 65535, not {given.port}")
    if not 0 < given.timeout_seconds < math.inf:
        raise ConfigError("--timeout-seconds must be more than 0")
    if not 1 <= given.count <= _COUNT_MAX:
        raise ConfigError(f"--count must be 1 to {_COUNT_MAX}, not {given.count}")


def _trips(given: argparse.Namespace) -> list[RoundTrips]:
    count, timeout = given.count, given.timeout_seconds
    if given.what == "engine":
        return [engine_trips(given.url or _ENGINE_URL, count, timeout)]
    done, endpoint = [], None
    if given.what == "kvcache" or given.url is not None:
        if given.url is None:
            given.url = default_url()
        done.append(admin_trips(AdminClient.of(given, timeout), count))
        endpoint = done[0].engine_endpoint
    if endpoint is None or given.host is not None or given.port is not None:
        host, port = given.host or "localhost", given.port or 5555
        endpoint = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
    return [engine_port_trips(endpoint, count, timeout), *done]


def _table(trips: Sequence[RoundTrips]) -> Table:
    head = ("WHAT", "ADDRESS", "ANSWERS", "FASTEST MS", "MEDIAN MS", "SLOWEST MS")
    return Table(
        head,
        [
            (
                each.what,
                each.address,
                Line("not well", Mood.BAD) if each.fault else Line("well", Mood.GOOD),
                *(f"{seconds * 1000:.2f}" for seconds in each.spread()),
            )
            if each.seconds
            else (each.what, each.address, Line("no", Mood.BAD), "-", "-", "-")
            for each in trips
        ],
    )
