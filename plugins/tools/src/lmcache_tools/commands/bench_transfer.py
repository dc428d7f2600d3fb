"""`lmcache bench transfer`"""

from __future__ import annotations

import argparse
import json
import math
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Final

from lmcache_client.errors import ConfigError, LMCacheError, ResourceError
from lmcache_core import HEADER_BYTES, Command, CommandContext, CommandParser
from lmcache_core.app.console.command_line import add_selection_flags, selection_of
from lmcache_core.app.console.command_output import add_output_flags
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_tools.bench.channels import Objects, Offered, Read, Reader, offered_by, open_side, serve
from lmcache_tools.bench.interruption import Interruption
from lmcache_tools.bench.sizes import size_of
from lmcache_tools.output import output_of
from lmcache_tools.page import Block, Line, Mood, Table
from lmcache_tools.quantities import seconds_text, size_text

_ABOUT: Final = (
    "Read objects out of another process's memory through a transfer channel.  Without --role, that process is started here; "
    "between two machines, start --role server on one and --role client on the other."
)
_LISTENING: Final = "listening on "
_CONNECT_SECONDS: Final = 5.0
_REFUSED: Final = {
    "--nixl-backend": "settings of a channel are its own; give them with --channel-settings",
    "--listen-url": "give --url alone; the channel listens at its host, at a port that the system chooses",
    "--control-url": "give --url alone; the client asks there for everything else",
    "--page-size": "memory is not read by pages here; give the size of objects with --object-size",
    "--use-lazy": "memory is allocated before the clock runs; lower --num-source-objects for less",
}
"""Flags of the public benchmark that mean nothing here, and what to do instead."""


def parsers() -> list[CommandParser]:
    parser = CommandParser("lmcache bench transfer", _ABOUT)
    add = parser.add_argument
    add(
        "--role", choices=("server", "client"), help="server: has the objects; client: reads them (default: both, here)"
    )
    add(
        "--transfer-channel-type",
        default="tcp",
        metavar="NAME",
        help="the channel, on both sides (default: %(default)s)",
    )
    add("--channel-settings", default="{}", metavar="JSON", help="its settings, such as '{\"plaintext\": true}' of tcp")
    add("--url", default="127.0.0.1:7600", metavar="HOST:PORT", help="where the server listens (default: %(default)s)")
    add("--buffer-size", default="8GiB", metavar="SIZE", help="the most memory of each side (default: %(default)s)")
    add("--object-size", default="10MiB", metavar="SIZE", help="with the header page (default: %(default)s)")
    add("--num-objects", type=int, default=100, metavar="N", help="that are read in one pass (default: %(default)s)")
    add("--num-source-objects", type=int, default=0, metavar="N", help="that the server has (default: as many)")
    add("--iters", type=int, default=5, metavar="N", help="passes that are counted (default: %(default)s)")
    add("--warmup", type=int, default=1, metavar="N", help="passes before them (default: %(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="of the objects' bytes (default: %(default)s)")
    add("--verify", action="store_true", help="compare the digest of every object: is always done, within the time")
    add(
        "--server-timeout",
        type=float,
        default=1800.0,
        metavar="S",
        help="the server ends after S seconds without a client",
    )
    for flag in _REFUSED:
        add(flag, nargs="?", const="", help=argparse.SUPPRESS)
    add_selection_flags(parser)
    add_output_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    """Exit code 1 when an object came back wrong."""
    given = parsers()[0].parse_all(arguments)
    for flag, remedy in _REFUSED.items():
        if getattr(given, flag.removeprefix("--").replace("-", "_")) is not None:
            raise ConfigError(f"{flag} has no meaning here: {remedy}")
    for flag, value, least in (
        ("--num-objects", given.num_objects, 1),
        ("--num-source-objects", given.num_source_objects, 0),
        ("--iters", given.iters, 1),
        ("--warmup", given.warmup, 0),
    ):
        if value < least:
            raise ConfigError(f"{flag} {value}: expected {least} or more")
    if not 0 < given.server_timeout < math.inf:
        raise ConfigError(f"--server-timeout {given.server_timeout:g}: expected more than 0")
    plugins = selection_of(given).load_for_user()
    settings = _settings(given.channel_settings)
    if given.role == "server":
        return _serve(given, plugins, settings)
    if given.role == "client":
        return _read(given, plugins, settings, _address(given.url))
    return _both(given, plugins, settings, arguments)


def _settings(text: str) -> Mapping[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--channel-settings: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError("--channel-settings: expected a JSON object, such as '{\"plaintext\": true}'")
    return values


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("tcp://").rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"--url {url}: expected an address such as 10.0.0.7:7600")
    return host.strip("[]"), int(port)


def _objects(given: argparse.Namespace, count: int) -> Objects:
    """Raises ConfigError where they do not fit."""
    size, most = size_of(given.object_size), size_of(given.buffer_size)
    if size <= HEADER_BYTES:
        raise ConfigError(f"--object-size {size}: expected more than the header page of {HEADER_BYTES} bytes")
    objects = Objects(size, count)
    if objects.total > most:
        raise ConfigError(
            f"{count} objects of {size_text(size)} take {size_text(objects.total)}, and --buffer-size is {size_text(most)}; "
            "raise it, or lower --num-objects, --num-source-objects or --object-size"
        )
    return objects


def _serve(given: argparse.Namespace, plugins: LoadedPlugins, settings: Mapping[str, Any]) -> ExitCode:
    objects = _objects(given, given.num_source_objects or given.num_objects)
    host, port = _address(given.url)
    name = given.transfer_channel_type
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ResourceError(
            f"--url {given.url}: cannot be bound ({error.strerror}); give an address of this machine whose port is free"
        ) from None
    with (
        listener,
        Interruption() as interruption,
        open_side(plugins, name, settings, host, objects.total, f"--transfer-channel-type {name}") as side,
    ):
        print(f"{_LISTENING}{host}:{listener.getsockname()[1]}", flush=True)
        serve(listener, side, objects, given.seed, lambda idle: interruption.asked or idle > given.server_timeout)
    return ExitCode.STOPPED


def _both(
    given: argparse.Namespace, plugins: LoadedPlugins, settings: Mapping[str, Any], arguments: Sequence[str]
) -> ExitCode:
    command = [sys.executable, "-m", "lmcache_core", "bench", "transfer", *arguments, "--role", "server"]
    command += ["--url", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            line = server.stdout.readline().strip()
            if not line.startswith(_LISTENING):
                raise LMCacheError("the other process has ended; what it said is above")
            return _read(given, plugins, settings, _address(line.removeprefix(_LISTENING)))
        finally:
            server.terminate()


def _read(
    given: argparse.Namespace, plugins: LoadedPlugins, settings: Mapping[str, Any], address: tuple[str, int]
) -> ExitCode:
    name = given.transfer_channel_type
    try:
        server = socket.create_connection(address, _CONNECT_SECONDS)
    except OSError as error:
        raise ResourceError(
            f"--url {address[0]}:{address[1]}: {error}; start `lmcache bench transfer --role server` there"
        ) from None
    with server:
        offered = offered_by(server)
        if offered.channel != name:
            raise ConfigError(
                f"--transfer-channel-type {name}: the server has the channel {offered.channel}; give both the same one"
            )
        given.object_size = str(offered.object_bytes)
        objects = _objects(given, given.num_objects)
        own_host = server.getsockname()[0]
        with (
            open_side(plugins, name, settings, own_host, objects.total, f"--transfer-channel-type {name}") as side,
            closing(Reader(side, offered.description, offered.secret)) as reader,
        ):
            seconds, wrong = _passes(given, reader, objects, offered)
    rates = [objects.size * objects.number / each / 1e9 for each in seconds]
    record = {
        "channel": name,
        "object_bytes": objects.size,
        "objects": objects.number,
        "seconds": seconds,
        "gb_per_second": rates,
        "wrong": wrong,
    }
    output_of(given).show(record, lambda: _page(record))
    return ExitCode.FAILED if wrong else ExitCode.STOPPED


def _passes(given: argparse.Namespace, reader: Reader, objects: Objects, offered: Offered) -> tuple[list[float], int]:
    """The seconds of each pass, and how many objects were not the right ones."""
    sources = len(offered.digests)
    reads = [
        Read(number % sources * objects.stride, number * objects.stride, objects.size)
        for number in range(objects.number)
    ]
    right = [offered.digests[number % sources] for number in range(objects.number)]
    seconds, wrong = list[float](), 0
    for number in range(given.warmup + given.iters):
        start = time.perf_counter()
        found = reader.read(reads)
        if number >= given.warmup:
            seconds.append(time.perf_counter() - start)
        wrong += sum(a != b for a, b in zip(found, right, strict=True))
    return seconds, wrong


def _page(record: Mapping[str, Any]) -> list[Block]:
    rates, wrong = record["gb_per_second"], record["wrong"]
    rows = [
        (str(number), seconds_text(seconds), f"{rate:.2f}")
        for number, (seconds, rate) in enumerate(zip(record["seconds"], rates, strict=True), 1)
    ]
    about = f"{record['objects']} objects of {size_text(record['object_bytes'])} by {record['channel']}"
    return [
        Table(("PASS", "TIME", "GB/S"), rows),
        Line(f"{about}: {statistics.median(rates):.2f} GB/s (median), {max(rates):.2f} at best, digests included"),
        Line(f"{wrong} objects were not what the server has", Mood.BAD)
        if wrong
        else Line("every object was right", Mood.GOOD),
    ]


COMMAND: Final = Command(run, parsers)
