"""`lmcache ping kvcache`"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from lmcache_client.errors import LMCacheError
from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.commands.ping import (
    add_engine_port_flags,
    add_ping_flags,
    check_ping_flags,
    engine_endpoint,
    measure,
    ping_engine_port,
    show_pings,
)
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_tools.admin_client import AdminClient, add_admin_flags
from lmcache_tools.loose_json import Loose

_UNHEALTHY: Final = (503,)
_ANY_HOST: Final = ("0.0.0.0", "::")


def parsers() -> list[CommandParser]:
    parser = CommandParser(
        "lmcache ping kvcache",
        "Ask whether the engine port and the admin API of a cache server answer, and how fast.  The engine port is where "
        "the admin API says, unless a flag says otherwise.",
    )
    add_engine_port_flags(parser)
    add_ping_flags(parser)
    add_admin_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    """Exit code 0 when both answer in time and are well, 1 when not."""
    given = parsers()[0].parse_all(arguments)
    check_ping_flags(given)
    client = AdminClient.of(given, given.timeout_seconds)

    def healthcheck() -> str:
        answer = Loose(client.ask("GET", "/healthcheck", also=_UNHEALTHY))
        return "" if (answer / "status").text() == "healthy" else f"{client.url}: {(answer / 'reason').text()}"

    admin = measure("admin API", client.url, given.count, healthcheck)
    endpoint = None
    if admin.seconds:
        try:
            endpoint = _engine_endpoint(client)
        except LMCacheError as error:  # a token may be asked for
            admin = admin._replace(fault=admin.fault or str(error))
    if endpoint is None or given.host is not None or given.port is not None:
        endpoint = engine_endpoint(given)
    return show_pings([ping_engine_port(endpoint, given), admin], given)


def _engine_endpoint(client: AdminClient) -> str | None:
    """The engine port from here: one that is bound to every address is at the one that the admin API was found at."""
    endpoint = (Loose(client.ask("GET", "/status")) / "server" / "engine_endpoint").text()
    parts = urlsplit(endpoint)
    if parts.scheme == "ipc":
        return endpoint
    if parts.scheme != "tcp" or not parts.port:
        return None
    host = urlsplit(client.url).hostname if parts.hostname in _ANY_HOST else parts.hostname
    return engine_endpoint(argparse.Namespace(host=host, port=parts.port))


COMMAND: Final = Command(run, parsers)
