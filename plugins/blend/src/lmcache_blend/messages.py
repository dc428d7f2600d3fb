"""The requests `cb_...` of engines whose pages the server fills, as they are on the wire."""

from __future__ import annotations

from typing import Final

import msgspec

from lmcache_client import BlendMatch
from lmcache_core import EngineKey, Operation

PROTOCOL_VERSION: Final = 1
NOT_MOVED: Final = (b"", False)
"""An answer without an event: nothing was moved."""


class Found(msgspec.Struct, frozen=True):
    """What is there of a prompt."""

    prefix_coverage_tokens: int = 0
    non_prefix_segments: tuple[BlendMatch, ...] = ()
    segmented_prefix_segments: tuple[BlendMatch, ...] = ()
    """Always empty: own chunks behind a hole are among the others."""


NOTHING_FOUND: Final = Found()

HANDSHAKE = Operation("cb_protocol_handshake", 33, (int,), tuple[int, bool], (PROTOCOL_VERSION, False))
_ROPE = (int, list[msgspec.msgpack.Ext], int, bool, list[int], list[list[int]], list[int])
REGISTER_ROPE = Operation("cb_register_rope", 25, (*_ROPE, str), None)
UNREGISTER_ROPE = Operation("cb_unregister_rope", 26, (int,), None)
UNIFIED_LOOKUP = Operation("cb_unified_lookup", 28, (EngineKey, int), Found | None, NOTHING_FOUND)
RETRIEVE = Operation(
    "cb_retrieve_pre_computed",
    27,
    (EngineKey, list[BlendMatch], list[list[int]], int, bytes),
    tuple[bytes, bool],
    NOT_MOVED,
)
REORDER_PLAN = Operation("cb_reorder_plan", None, (EngineKey, int, int), list[int], [])

# Names of an earlier version.
REGISTER_ROPE_V3 = Operation("cb_register_rope_v3", None, REGISTER_ROPE.payload, None)
UNREGISTER_ROPE_V3 = Operation("cb_unregister_rope_v3", None, UNREGISTER_ROPE.payload, None)
RETRIEVE_V3 = Operation("cb_retrieve_pre_computed_v3", None, RETRIEVE.payload, RETRIEVE.result, NOT_MOVED)
