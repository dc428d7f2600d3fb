"""`lmcache quota`"""

from __future__ import annotations

from typing import Final

from lmcache_core.app.console.command_group import CommandGroup

GROUP: Final = CommandGroup(
    "quota",
    {
        "set": "limit what a cache salt may use of L1",
        "get": "show one salt's limit and use",
        "list": "show every salt that has a limit or anything in L1",
        "delete": "take a salt's limit away; the default one applies to it then, if there is one",
    },
)

run = GROUP.run
parsers = GROUP.parsers
