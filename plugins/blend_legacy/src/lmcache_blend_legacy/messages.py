"""The requests `cb_...` of the first version, as they are on the wire: by name only."""

from __future__ import annotations

import msgspec

from lmcache_client import BlendMatch
from lmcache_core import EngineKey, Operation

NOT_MOVED = (b"", False)
"""An answer without an event: nothing was moved."""
NOTHING_TO_STORE = (b"", True)
"""Success without an event: everything is stored already, or there is no room."""

REGISTER = Operation("cb_register_kv_cache", None, (int, list[msgspec.msgpack.Ext], str, int), None)
UNREGISTER = Operation("cb_unregister_kv_cache", None, (int,), None)
_STORE = (EngineKey, int, int, bytes)
STORE_PRE_COMPUTED = Operation("cb_store_pre_computed", None, _STORE, tuple[bytes, bool], NOT_MOVED)
STORE_FINAL = Operation("cb_store_final", None, _STORE, tuple[bytes, bool], NOT_MOVED)
LOOKUP = Operation("cb_lookup_pre_computed", None, (EngineKey,), list[tuple[int, int]], [])
LOOKUP_V2 = Operation("cb_lookup_pre_computed_v2", None, (EngineKey,), list[BlendMatch], [])
_RANGES, _MATCHES = list[tuple[int, int]], list[BlendMatch]
RETRIEVE = Operation(
    "cb_retrieve_pre_computed", None, (EngineKey, _RANGES, int, int, bytes), tuple[bytes, bool], NOT_MOVED
)
RETRIEVE_V2 = Operation(
    "cb_retrieve_pre_computed_v2", None, (EngineKey, _MATCHES, int, int, bytes), tuple[bytes, bool], NOT_MOVED
)
