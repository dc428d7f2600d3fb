"""`lmcache bench`"""

from __future__ import annotations

from typing import Final

from lmcache_core.app.console.command_group import CommandGroup

GROUP: Final = CommandGroup("bench", {"l2": "measure L2 adapters beside what their media can do"})

run = GROUP.run
parsers = GROUP.parsers
