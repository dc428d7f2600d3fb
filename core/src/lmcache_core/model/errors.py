"""The error tree.  A miss is not an error.

LMCacheError
 |- ConfigError            the user can fix it; printed as one line, without a traceback
 |   '- ResourceError      the configuration is right, but something outside is taken, full or not writable
 |- PluginError            carries .plugin
 |   |- PluginLoadError        it cannot be imported, found, or is built for another contract
 |   '- PluginContractError    it answers a hook with something that the contract does not allow
 |- StorageError
 |   |- DamagedObjectError bytes that are not the object they claim to be
 |   |   '- UnreadableObjectError   or that this server cannot read, and another one may
 |   '- AdapterError       carries .adapter
 |- ProtocolError          the peer broke the wire contract
 '- NoAnswerError          the peer said nothing in time
"""

from __future__ import annotations


class LMCacheError(Exception):
    """Root of every error this project raises on purpose."""


class ConfigError(LMCacheError):
    """A setting is wrong.  The message names the setting, the value, what is allowed and what to do."""


class ResourceError(ConfigError):
    """A port, path, device or memory that the configuration names cannot be had.  The message says who has it."""


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
    they are somebody's, and are left alone; elsewhere they make room, as damaged ones do."""


class AdapterError(StorageError):
    """An L2 adapter failed at something that is not a miss."""

    def __init__(self, adapter: str, message: str) -> None:
        super().__init__(message)
        self.adapter = adapter


class ProtocolError(LMCacheError):
    """A frame from the socket is not what the wire contract allows."""


class NoAnswerError(LMCacheError):
    """A request was not answered in time, or its connection was closed.  Whether it was carried out is not known."""
