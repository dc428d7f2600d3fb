"""`lmcache plugins`"""

from __future__ import annotations

from typing import Final

from lmcache_core.app.console.command_group import CommandGroup

GROUP: Final = CommandGroup("plugins")

run = GROUP.run
parsers = GROUP.parsers
