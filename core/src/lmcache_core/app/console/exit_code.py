"""How `lmcache` ends."""

from __future__ import annotations

from enum import IntEnum
from types import MappingProxyType
from typing import Final

from lmcache_client.errors import ConfigError, LMCacheError, ResourceError
from lmcache_core.model.errors import PluginError


class ExitCode(IntEnum):
    STOPPED = 0
    FAILED = 1
    USAGE = 2
    RESOURCE = 3
    PLUGIN = 4
    NOT_DRAINED = 5
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """As `lmcache help exit-codes` says it."""
        return _MEANINGS[self]


_MEANINGS: Final = MappingProxyType(
    {
        ExitCode.STOPPED: "it did what was asked",
        ExitCode.FAILED: "it could not, or what it looked at is not well: a server that does not answer or is not healthy, "
        "a requirement or a check that fails",
        ExitCode.USAGE: "the command line or the configuration is wrong",
        ExitCode.RESOURCE: "a port, a path, a lock or memory is not available",
        ExitCode.PLUGIN: "a plugin that is needed cannot be used",
        ExitCode.NOT_DRAINED: "a server has stopped, but not everything reached L2",
        ExitCode.INTERRUPTED: "Ctrl-C or SIGTERM ended it before it had done what was asked",
    }
)


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
