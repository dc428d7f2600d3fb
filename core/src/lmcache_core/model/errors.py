"""The errors of the server and its plugins.  A miss is not an error.

LMCacheError               (and ConfigError, ResourceError, ProtocolError, NoAnswerError: `lmcache_client.errors`)
 |- PluginError            carries .plugin
 |   |- PluginLoadError        it cannot be imported, found, or is built for another contract
 |   '- PluginContractError    it answers a hook with something that the contract does not allow
 '- StorageError
     |- DamagedObjectError bytes that are not the object they claim to be
     |   '- UnreadableObjectError   or that this server cannot read, and another one may
     '- AdapterError       carries .adapter
"""

from __future__ import annotations

from lmcache_client.errors import LMCacheError


class PluginError(LMCacheError):
    """Something is wrong with one plugin."""

    def __init__(self, plugin: str, message: str) -> None:
        super().__init__(message)
        self.plugin = plugin


class PluginLoadError(PluginError):
    """The plugin cannot be found, imported, or is built for another version of the contract."""


class PluginContractError(PluginError):
    """The plugin answered a hook with something that the contract does not allow."""


class StorageError(LMCacheError):
    """Root of what goes wrong while bytes are kept or moved."""


class DamagedObjectError(StorageError):
    """Stored bytes that cannot be the object they claim to be.  A miss, never a hit."""


class UnreadableObjectError(DamagedObjectError):
    """Stored bytes that this server cannot read and another one may: encrypted with another key.  Where a backend is shared
    they belong to another server, and are left alone; elsewhere they are removed, as damaged ones are."""


class AdapterError(StorageError):
    """An L2 adapter failed at something that is not a miss."""

    def __init__(self, adapter: str, message: str) -> None:
        super().__init__(message)
        self.adapter = adapter


def error_message(error: BaseException) -> str:
    """`str(error)`, although the `__str__` of a plugin's exception may fail.  Never raises."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the __str__ of a plugin's exception is plugin code, too
        return "(its message is not available)"
