"""Hand-offs: an engine that prefills says how far it is, an engine that decodes waits for it.

A hand-off is an id, the chunk hashes of its prompt, and how many of these are stored.  It has no KV.  What is handed over are
chunks, found by their own keys: an id that is wrong, late or used twice costs time, never a wrong byte.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lmcache_client.engine_key import EngineKey
from lmcache_client.operations import Operation

UNKNOWN: Final = "unknown"
OPEN: Final = "open"
COMPLETE: Final = "complete"
CANCELLED: Final = "cancelled"
ID_CHARS_MAX: Final = 256
HASH_BYTES: Final = 32


class HandoffState(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a hand-off is."""

    state: str
    """One of the states of this module. A later version may have more: they end the wait, too."""
    chunks: int = 0
    """Chunks of its prompt that are stored, from the first one on."""
    hashes: bytes = b""
    """Of those behind the count that the question named, one after the other; for servers alone."""
    world_size: int = 0
    """Of the engine that prefills, beside hashes: another one cannot read what it stores."""


# By name only. The first argument is the hand-off's id.
# With the prompt that is handed over, and its tail.
HANDOFF_OPEN = Operation("handoff_open", None, (str, EngineKey), None)
# How many chunks are stored, from the first one on.
HANDOFF_CHUNK = Operation("handoff_chunk", None, (str, int), None)
HANDOFF_COMPLETE = Operation("handoff_complete", None, (str,), None)
HANDOFF_CANCEL = Operation("handoff_cancel", None, (str,), None)
# Id, the count that is known, seconds. Answered when the hand-off is over or its count is above that one, and after the
# seconds in any case; at once where it is unknown, unless the count is -1, which waits for it to be opened.
HANDOFF_WAIT = Operation("handoff_wait", None, (str, int, float), HandoffState, HandoffState(UNKNOWN))
# The id of a hand-off of another server, that server's instance id, the count to begin with, and the prompt of the engine that
# waits: its server subscribes to the hand-off there, pulls what is stored, and knows the hand-off as its own.
HANDOFF_FOLLOW = Operation("handoff_follow", None, (str, str, int, EngineKey), None)
# Of an engine that has a role: the URL of its HTTP server, and `producer`, `receiver` or `both`; empty: it has none any more.
HANDOFF_ENGINE = Operation("handoff_engine", None, (str, str), None)
# Between servers: as HANDOFF_WAIT, with hashes in the answer.
HANDOFF_SUBSCRIBE = Operation("handoff_subscribe", None, (str, int, float), HandoffState, HandoffState(UNKNOWN))
