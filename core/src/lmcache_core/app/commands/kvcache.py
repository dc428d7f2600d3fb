"""`lmcache kvcache`, for who knows the public server's command line."""

from __future__ import annotations

from typing import Final

from lmcache_core.app.console.command_group import CommandGroup

GROUP: Final = CommandGroup("kvcache", {"clear": "drop what a running server has in L1; the same as `lmcache clear`"})

run = GROUP.run
parsers = GROUP.parsers
