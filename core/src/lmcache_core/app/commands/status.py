"""`lmcache status`"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from lmcache_core.app.admin_client import AdminClient, add_admin_flags
from lmcache_core.app.command_line import Parser
from lmcache_core.app.exit_code import ExitCode
from lmcache_core.app.text_table import text_table


def run(arguments: Sequence[str]) -> ExitCode:
    parser = Parser("lmcache status", "Show the state of a running server.")
    add_admin_flags(parser)
    given = parser.parse_all(arguments)
    status = AdminClient.of(given).ask("GET", "/status")
    print(json.dumps(status, indent=2) if given.json else "\n".join(text_table(list(_lines(status)))))
    return ExitCode.STOPPED


def _lines(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Nested values as (dotted path, text)."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _lines(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for index, inner in enumerate(value):
            yield from _lines(inner, f"{path}[{index}]")
    elif isinstance(value, dict | list):
        yield path, ", ".join(map(str, value)) or "-"
    else:
        yield path, "-" if value in (None, "") else str(value)
