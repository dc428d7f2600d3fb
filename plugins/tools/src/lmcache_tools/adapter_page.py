"""What the commands of `lmcache adapters` share: how L2 adapters are named, waited for and shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

from lmcache_client.errors import ConfigError
from lmcache_core import CommandParser
from lmcache_http.admin_api.changes import UNTIL_RESTART, AdapterState
from lmcache_tools.admin_client import AdminClient
from lmcache_tools.page import Block, Line, Mood, Table

ADAPTERS: Final = "/l2/adapters"
_POLL_SECONDS: Final = 0.2
_MOODS: Final = {"serving": Mood.GOOD, "removed": Mood.QUIET, "lingering": Mood.BAD}


def add_name(parser: CommandParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the adapter, as `lmcache adapters list` shows it")


def add_wait(parser: CommandParser) -> None:
    parser.add_argument("--wait", action="store_true", help="come back when it is over")


def adapter_path(name: str, action: str = "") -> str:
    """The route of an adapter, percent-encoded.  Raises ConfigError for an invalid name."""
    if not name or "/" in name:
        raise ConfigError(f"NAME {name[:40]!r}: no adapter is called so; `lmcache adapters list` shows them")
    return f"{ADAPTERS}/{quote(name, safe='')}{action}"


def wait_while(client: AdminClient, answer: dict[str, Any], goes_on: Callable[[AdapterState], bool]) -> dict[str, Any]:
    """Ask again and again.  Returns the last answer.  Where another adapter has the name by now, this one was removed."""
    while goes_on(state := client.read(answer, AdapterState)):
        time.sleep(_POLL_SECONDS)
        before, answer = answer, client.ask("GET", adapter_path(state.name))
        if client.read(answer, AdapterState).index != state.index:
            return {**before, "state": "removed"}
    return answer


def adapter_table(states: Sequence[AdapterState]) -> Table:
    rows = [
        (
            str(state.index),
            state.name,
            state.type,
            Line(state.state, _MOODS.get(state.state, Mood.DOUBTFUL)),
            "yes" if state.healthy else Line("no", Mood.BAD),
            str(state.objects_left),
            str(state.bytes_left),
            str(state.jobs_in_flight),
        )
        for state in states
    ]
    return Table(("INDEX", "NAME", "TYPE", "STATE", "HEALTHY", "OBJECTS LEFT", "BYTES LEFT", "JOBS"), rows)


def adapter_page(text: str, state: AdapterState) -> list[Block]:
    """What was done with an adapter, and its state."""
    blocks: list[Block] = [Line(text), adapter_table([state])]
    if state.abandoned:
        blocks.append(Line(f"{state.abandoned} objects were under way, and were abandoned", Mood.DOUBTFUL))
    return [*blocks, Line(UNTIL_RESTART, Mood.QUIET)]
