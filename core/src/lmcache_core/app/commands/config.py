"""`lmcache config`"""

from __future__ import annotations

from typing import Final

from lmcache_core.app.console.command_group import CommandGroup

GROUP: Final = CommandGroup(
    "config",
    {
        "show": "show every setting, its value and where that comes from: offline, or of a running server",
        "set": "change settings of a running server, until it is restarted",
    },
)

run = GROUP.run
parsers = GROUP.parsers
