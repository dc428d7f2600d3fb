"""`lmcache config`"""

from __future__ import annotations

from typing import Final

from lmcache_core.app.console.command_group import CommandGroup

GROUP: Final = CommandGroup("config")

run = GROUP.run
parsers = GROUP.parsers
