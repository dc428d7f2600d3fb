"""`lmcache adapters add`"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from lmcache_client.errors import ConfigError
from lmcache_core import Command, CommandContext, CommandParser
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_http.admin_api.changes import AdapterState
from lmcache_tools.adapter_page import ADAPTERS, adapter_page
from lmcache_tools.admin_client import AdminClient, add_admin_flags
from lmcache_tools.output import output_of

_PATIENCE_SECONDS: Final = 45.0
"""Longer than the server waits for an adapter to open."""


def parsers() -> list[CommandParser]:
    parser = CommandParser("lmcache adapters add", "Open an L2 adapter and use it, until the server is restarted.")
    parser.add_argument(
        "adapter",
        metavar="JSON",
        help='as --l2-adapter takes it, such as {"type": "memory"}; @FILE reads it from a file, for secrets',
    )
    add_admin_flags(parser)
    return [parser]


def run(arguments: Sequence[str], context: CommandContext) -> ExitCode:
    given = parsers()[0].parse_all(arguments)
    client, values = AdminClient.of(given, _PATIENCE_SECONDS), _object(given.adapter)
    answer = client.ask("POST", ADAPTERS, values)
    state = client.read(answer, AdapterState)
    output_of(given).show(answer, lambda: adapter_page(f"adapter '{state.name}' is in use", state))
    return ExitCode.STOPPED


def _object(text: str) -> dict[str, Any]:
    try:
        values = json.loads(Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text)
    except OSError as error:
        raise ConfigError(f"{text}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{text}: it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(values, dict):
        raise ConfigError('JSON: expected an object such as {"type": "memory"}')
    return values


COMMAND: Final = Command(run, parsers)
