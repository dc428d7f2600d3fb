"""`lmcache adapters`"""

from __future__ import annotations

from typing import Final

from lmcache_core.app.console.command_group import CommandGroup

GROUP: Final = CommandGroup(
    "adapters",
    {
        "list": "show the L2 adapters of a running server, and what each is doing",
        "add": "open an L2 adapter and use it",
        "drain": "store nothing new in an L2 adapter; what waits for it is stored",
        "resume": "take a drain back",
        "remove": "drain an L2 adapter and take it out of the server",
    },
)

run = GROUP.run
parsers = GROUP.parsers
