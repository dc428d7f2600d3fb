"""`lmcache plugins`"""

from __future__ import annotations

from typing import Final

from lmcache_core.app.console.command_group import CommandGroup

_GROUP: Final = CommandGroup(
    "plugins",
    {
        "list": "show which plugins are installed, and what is wrong with any of them",
        "show": "show what something is, its settings and an example",
        "check": "run the laws of its kind against your own disk, bucket or server",
        "new": "start a plugin of your own",
    },
)

run = _GROUP.run
parsers = _GROUP.parsers
