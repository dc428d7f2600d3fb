"""How `lmcache` ends."""

from __future__ import annotations

from enum import IntEnum

from lmcache_core.model.errors import ConfigError, LMCacheError, PluginError, ResourceError


class ExitCode(IntEnum):
    STOPPED = 0
    """It did what was asked."""
    FAILED = 1
    """An unexpected failure."""
    USAGE = 2
    """The command line or the configuration is wrong."""
    RESOURCE = 3
    """A port, a path, a lock or memory cannot be had."""
    PLUGIN = 4
    """A plugin that is needed cannot be used."""
    NOT_DRAINED = 5
    """Stopped, but not everything reached L2."""
    INTERRUPTED = 130
    """Ctrl-C or SIGTERM ended it before it had done what was asked."""


def exit_code(error: LMCacheError) -> ExitCode:
    match error:
        case ResourceError():
            return ExitCode.RESOURCE
        case ConfigError():
            return ExitCode.USAGE
        case PluginError():
            return ExitCode.PLUGIN
        case _:
            return ExitCode.FAILED
