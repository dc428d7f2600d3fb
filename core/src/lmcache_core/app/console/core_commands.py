"""What `lmcache` can do without any plugin."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

CORE_COMMANDS: Final = MappingProxyType(
    {
        "server": "run a cache server",
        "ping": "ask whether a cache server answers, and how fast",
        "plugins": "list or show plugins",
        "version": "show the version",
    }
)
"""Names and what each does; no plugin can take one of them.  Each is a module of `app.commands`."""

CORE_GROUPS: Final = MappingProxyType(
    {
        "plugins": {
            "list": "show which plugins are installed, and what is wrong with any of them",
            "show": "show what something is, its settings and an example",
        },
        "ping": {},
    }
)
"""Those of them that a word may follow, and what each word does.  Plugins may add words."""


def is_core_command(name: str) -> bool:
    """Is the name of a command that a plugin offers one of core's?  `GROUP.WORD` is run as `lmcache GROUP WORD`."""
    group, _, word = name.partition(".")
    return word in CORE_GROUPS[group] if word and group in CORE_GROUPS else group in (*CORE_COMMANDS, "help")
