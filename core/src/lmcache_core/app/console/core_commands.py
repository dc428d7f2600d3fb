"""What `lmcache` can do without any plugin."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

CORE_COMMANDS: Final = MappingProxyType(
    {
        "server": "run a cache server",
        "ping": "ask whether a cache server or an engine answers, and how fast",
        "config": "show a configuration, and where each value comes from",
        "plugins": "list or show plugins",
        "version": "show the version",
    }
)
"""Names and what each does; no plugin can take one of them.  Each is a module of `app.commands`."""

CORE_GROUPS: Final = MappingProxyType(
    {
        "config": {
            "show": "show every setting, its value and where that comes from: offline, or of a running server",
        },
        "plugins": {
            "list": "show which plugins are installed, and what is wrong with any of them",
            "show": "show what something is, its settings and an example",
        },
    }
)
"""Those of them that are followed by a word, and what each word does.  Plugins may add words."""
