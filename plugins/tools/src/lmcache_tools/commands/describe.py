"""`lmcache describe`"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_tools.admin_client import AdminClient, add_admin_flags, default_url
from lmcache_tools.description import describe_server, description_page
from lmcache_tools.engine_http import EngineHttp
from lmcache_tools.output import output_of
from lmcache_tools.page import Block, Line, Table

_ENGINE_URL: Final = "http://localhost:8000"


def parsers() -> list[CommandParser]:
    parser = CommandParser(
        "lmcache describe", "Say in words what a server is, and how many tokens fit into each of its tiers."
    )
    parser.add_argument(
        "what",
        nargs="?",
        choices=("kvcache", "engine"),
        default="kvcache",
        help=f"a cache server (the default), or an inference engine's HTTP server (then --url is {_ENGINE_URL})",
    )
    add_admin_flags(parser)
    parser.set_defaults(url=None)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    described, page = _engine(given) if given.what == "engine" else _server(given)
    output_of(given).show(described, lambda: page)
    return ExitCode.STOPPED


def _server(given: argparse.Namespace) -> tuple[dict[str, Any], list[Block]]:
    given.url = given.url or default_url()
    described = describe_server(AdminClient.of(given).ask("GET", "/status"))
    return described, description_page(described)


def _engine(given: argparse.Namespace) -> tuple[dict[str, Any], list[Block]]:
    engine = EngineHttp(given.url or _ENGINE_URL)
    described = {"url": engine.url, "version": engine.version() or None, "models": engine.models()}
    return described, list(_engine_page(described))


def _engine_page(described: Mapping[str, Any]) -> Iterator[Block]:
    version = f", version {described['version']}" if described["version"] else ""
    yield Line(f"An inference engine at {described['url']}{version}.")
    rows = [
        tuple(str(model.get(name) or "-") for name in ("id", "max_model_len", "root", "owned_by"))
        for model in described["models"]
    ]
    yield Table(("MODEL", "CONTEXT TOKENS", "FROM", "OWNED BY"), rows) if rows else Line("It names no model.")


COMMAND: Final = Command(run, parsers)
