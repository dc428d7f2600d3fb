"""What `lmcache` can do without any plugin."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

CORE_COMMANDS: Final = MappingProxyType(
    {
        "server": "run a cache server",
        "ping": "ask a server's engine port whether it answers",
        "status": "show the state of a running server",
        "quota": "limit what cache salts may use of a running server's L1",
        "clear": "drop what a running server has in L1",
        "plugins": "list, show, check or start plugins",
        "version": "show the version",
    }
)
"""Names and what each does; no plugin can take one of them.  Each is a module of `app.commands`."""
