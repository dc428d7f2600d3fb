"""`lmcache ping`: whether the engine port of a cache server answers, and how fast.  Plugins may add words to it."""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from lmcache_client.client import EngineClient
from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core.app.console.command_line import CommandParser
from lmcache_core.app.console.command_output import CommandOutput, add_output_flags, text_table
from lmcache_core.app.console.exit_code import ExitCode

_COUNT_MAX: Final = 1000


class Pings(NamedTuple):
    """`seconds` of each question that was answered; `fault` says why it is not well, or is empty."""

    what: str
    address: str
    seconds: Sequence[float]
    fault: str = ""

    def milliseconds(self) -> tuple[float, float, float]:
        """Fastest, median and slowest."""
        return 1000 * min(self.seconds), 1000 * statistics.median(self.seconds), 1000 * max(self.seconds)


def parsers() -> list[CommandParser]:
    parser = CommandParser("lmcache ping", "Ask whether the engine port of a cache server answers, and how fast.")
    add_engine_port_flags(parser)
    add_ping_flags(parser)
    add_output_flags(parser)
    return [parser]


def run(arguments: Sequence[str]) -> ExitCode:
    """Exit code 0 when it answers in time and is well, 1 when not."""
    given = parsers()[0].parse_all(arguments)
    check_ping_flags(given)
    return show_pings([ping_engine_port(engine_endpoint(given), given)], given)


def add_engine_port_flags(parser: CommandParser) -> None:
    parser.add_argument("--host", help="where the engine port is (default: localhost)")
    parser.add_argument("--port", type=int, help="the engine port (default: 5555)")


def add_ping_flags(parser: CommandParser) -> None:
    parser.add_argument(
        "--timeout-seconds", default=5.0, type=float, help="how long to wait for one answer (default: 5)"
    )
    parser.add_argument("--count", default=5, type=int, metavar="N", help="how often to ask each (default: 5)")


def check_ping_flags(given: argparse.Namespace) -> None:
    """Raises ConfigError."""
    port = getattr(given, "port", None)
    if port is not None and not 0 < port < 65536:
        raise ConfigError(f"--port must be 1 to 65535, not {port}")
    if not 0 < given.timeout_seconds < math.inf:
        raise ConfigError("--timeout-seconds must be more than 0")
    if not 1 <= given.count <= _COUNT_MAX:
        raise ConfigError(f"--count must be 1 to {_COUNT_MAX}, not {given.count}")


def engine_endpoint(given: argparse.Namespace) -> str:
    host, port = given.host or "localhost", given.port or 5555
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def ping_engine_port(endpoint: str, given: argparse.Namespace) -> Pings:
    """Over one ZMQ connection, which the first question opens."""
    with EngineClient(endpoint, given.timeout_seconds) as client:
        fault = f"{endpoint} answers, but says that it is not well"
        return measure("engine port", endpoint, given.count, lambda: "" if client.ping() else fault)


def measure(what: str, address: str, count: int, ask: Callable[[], str]) -> Pings:
    """`ask` returns what is wrong, or nothing; the first LMCacheError ends it."""
    seconds: list[float] = []
    fault = ""
    for _ in range(count):
        started = time.perf_counter()
        try:
            fault = ask() or fault
        except LMCacheError as error:
            return Pings(what, address, seconds, str(error))
        seconds.append(time.perf_counter() - started)
    return Pings(what, address, seconds, fault)


def show_pings(pings: Sequence[Pings], given: argparse.Namespace) -> ExitCode:
    """Raises LMCacheError with all that is wrong."""
    faults = [each.fault for each in pings if each.fault]
    output = CommandOutput.of(given)
    if output.is_json or any(each.seconds for each in pings):
        head = ("WHAT", "ADDRESS", "ANSWERS", "FASTEST MS", "MEDIAN MS", "SLOWEST MS")
        table = text_table([head, *map(_cells, pings)])
        output.show({"healthy": not faults, "pings": [*map(_record, pings)]}, "\n".join(table))
    if faults:
        raise LMCacheError("; ".join(faults))
    return ExitCode.STOPPED


def _cells(pings: Pings) -> tuple[str, ...]:
    if not pings.seconds:
        return pings.what, pings.address, "no", "-", "-", "-"
    times = (f"{each:.2f}" for each in pings.milliseconds())
    return pings.what, pings.address, "not well" if pings.fault else "well", *times


def _record(pings: Pings) -> dict[str, Any]:
    times = [round(each, 3) for each in pings.milliseconds()] if pings.seconds else [None] * 3
    return {
        "what": pings.what,
        "address": pings.address,
        "healthy": not pings.fault,
        "answers": len(pings.seconds),
        **dict(zip(("fastest_ms", "median_ms", "slowest_ms"), times, strict=True)),
        "fault": pings.fault or None,
    }
