"""`lmcache plugins`"""

from __future__ import annotations

from typing import Final

from lmcache_core.app.console.command_group import CommandGroup

GROUP: Final = CommandGroup(
    "plugins",
    {
        "list": "show which plugins are installed, and what is wrong with any of them",
        "show": "show what something is, its settings and an example",
    },
)

run = GROUP.run
parsers = GROUP.parsers
