"""What clients and server raise on purpose.  The server's own errors are in `lmcache_core.model.errors`.

LMCacheError
 |- ConfigError            the user can fix it; printed as one line, without a traceback
 |   '- ResourceError      the configuration is right, but something outside is taken, full or not writable
 |- ProtocolError          the peer broke the wire contract
 '- NoAnswerError          the peer said nothing in time
"""

from __future__ import annotations


class LMCacheError(Exception):
    """Root of every error this project raises on purpose."""


class ConfigError(LMCacheError):
    """A setting is wrong.  The message names the setting, the value, what is allowed and what to do."""


class ResourceError(ConfigError):
    """A port, path, device or memory that the configuration names is not available.  The message says who has it."""


class ProtocolError(LMCacheError):
    """A frame from the socket is not what the wire contract allows."""


class NoAnswerError(LMCacheError):
    """A request was not answered in time, or its connection was closed.  Whether it was carried out is not known."""
