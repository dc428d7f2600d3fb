"""`lmcache pins`"""

from __future__ import annotations

from typing import Final

from lmcache_core.app.console.command_group import CommandGroup

GROUP: Final = CommandGroup(
    "pins",
    {
        "list": "show what is pinned in L1",
        "add": "keep chunks in L1, under a name",
        "remove": "let a pin go",
    },
)

run = GROUP.run
parsers = GROUP.parsers
