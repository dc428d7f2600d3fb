"""What `lmcache` can do without any plugin."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Final

CORE_COMMANDS: Final = MappingProxyType(
    {
        "server": "run a cache server",
        "ping": "ask whether a cache server answers, and how fast",
        "config": "show a configuration, and where each value comes from",
        "plugins": "list or show plugins",
        "version": "show the version",
    }
)
"""Names and what each does; no plugin can take one of them.  Each is a module of `app.commands`."""

CORE_GROUPS: Final = MappingProxyType(
    {
        "config": {
            "show": "show every setting that a server would have, its value and where that comes from",
        },
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


def run_core_command(name: str, arguments: Sequence[str]) -> int:
    """`lmcache NAME WORD ...` is module `app.commands.NAME_WORD`, imported when it is asked for, so that each costs only what
    it needs.  A group without words of core's is a command itself, `app.commands.NAME`."""
    words = CORE_GROUPS.get(name, {})
    word = arguments[0] if arguments else "-"
    module = f"lmcache_core.app.commands.{name}"
    if name not in CORE_GROUPS or (not words and word.startswith("-")):
        done: int = import_module(module).run(arguments)
    elif word in words:
        done = import_module(f"{module}_{word}").run(arguments[1:])
    else:  # here, so that core's own words do not pay for what looks at plugins
        from lmcache_core.app.console.plugin_commands import run_word_of_plugin

        done = run_word_of_plugin(name, arguments)
    return done
