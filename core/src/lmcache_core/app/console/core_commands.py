"""What `lmcache` can do without any plugin."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

CORE_COMMANDS: Final = MappingProxyType(
    {
        "server": "run a cache server",
        "ping": "ask whether a cache server or an engine answers, and how fast",
        "status": "show how a running server is, what it holds and for whom",
        "describe": "say what a running server is, and how many tokens fit into each tier",
        "quota": "limit what cache salts may use of a running server's L1",
        "clear": "drop what a running server has in L1",
        "keys": "list what a running server holds, object by object",
        "prefetch": "bring chunks from L2 into a running server's L1",
        "pins": "keep chunks in a running server's L1",
        "kvcache": "clear: the same as `lmcache clear`",
        "adapters": "add, drain and remove L2 adapters of a running server",
        "config": "show a configuration, and where each value comes from, or change a running server's",
        "doctor": "look at a machine and a configuration, and say what to change",
        "bench": "measure L2 adapters beside what their media can do",
        "plugins": "list or show plugins, and with lmcache-devkit check or start them",
        "completion": "print a script with which a shell completes commands and flags",
        "version": "show the version",
    }
)
"""Names and what each does; no plugin can take one of them.  Each is a module of `app.commands`."""
