"""The request types of the engine protocol: the ones that core can decode, and the answer to every other known one.

A number is never given to a second request type.  11 is `query_prefetch_lookup_hits`, which newer clients do not send.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from lmcache_client.engine_key import EngineKey
from lmcache_client.messages import (
    BlockAllocation,
    ClientHello,
    EngineDrivenRegistration,
    PrepareRetrieveReply,
    PrepareStoreReply,
    ServerHello,
    SharedMemoryOffer,
    StoreContext,
    WorkerRegistration,
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One request type of the engine protocol.  `payload` and `result` are types that msgspec can decode and encode;
    a result of None means a reply without a result frame."""

    name: str
    wire_id: int | None
    """The legacy number; None for operations that travel by name only."""
    payload: tuple[Any, ...]
    result: Any
    negative: Any = None
    """The answer when the handler fails, the payload cannot be read, or no handler is registered.  Engines wait 300 s for an
    answer that does not come, so there always is one."""


# Without a number to give, no answer frame is the best one: the engine fails at once instead of after its time-out.
GET_CHUNK_SIZE = Operation("get_chunk_size", 21, (), int, None)
GET_EXPERIMENTAL = Operation("get_experimental", 32, (), list[str], [])
PING = Operation("ping", 22, (int | None,), bool, False)
NOOP = Operation("noop", 24, (), str, "")
CLEAR = Operation("clear", 20, (bool,), None)
# By name only: the numbers are the public protocol's.
HELLO = Operation("hello", None, (ClientHello,), ServerHello, None)

LOOKUP = Operation("lookup", 8, (EngineKey, int), None)
QUERY_PREFETCH_STATUS = Operation("query_prefetch_status", 9, (str,), int | None, 0)
WAIT_PREFETCH_STATUS = Operation("wait_prefetch_status", 10, (str, float), int | None, 0)
QUERY_PREFETCH_LOOKUP_HITS = Operation("query_prefetch_lookup_hits", 11, (str,), int | None, 0)
FREE_LOOKUP_LOCKS = Operation("free_lookup_locks", 12, (EngineKey, int), None)
END_SESSION = Operation("end_session", 13, (str,), None)
REPORT_BLOCK_ALLOCATION = Operation("report_block_allocation", 23, (int, str, list[BlockAllocation]), None)

# A registration has no negative of its own.  This one lets the engine run, uncached, instead of failing to start.
REGISTER_ENGINE_DRIVEN = Operation(
    "register_kv_cache_engine_driven_context", 14, (EngineDrivenRegistration,), SharedMemoryOffer, SharedMemoryOffer()
)
UNREGISTER_ENGINE_DRIVEN = Operation("unregister_kv_cache_engine_driven_context", 15, (int,), None)
# Empty lists, not unset ones: a worker with shared memory then writes nothing and commits nothing, where it would
# commit unwritten memory otherwise; a worker without shared memory does not look.
PREPARE_STORE = Operation(
    "prepare_store", 16, (EngineKey, int), PrepareStoreReply, PrepareStoreReply(StoreContext((), ()))
)
# The data is a view of the received frame: it can be hundreds of MiB and goes from there into L1 without a copy.
COMMIT_STORE = Operation("commit_store", 17, (EngineKey, int, memoryview), bool, False)
PREPARE_RETRIEVE = Operation(
    "prepare_retrieve", 18, (EngineKey, int), PrepareRetrieveReply, PrepareRetrieveReply(success=False)
)
COMMIT_RETRIEVE = Operation("commit_retrieve", 19, (EngineKey, int), bool, True)

# Ours, by name only.
REGISTER_WORKER = Operation("register_worker", None, (WorkerRegistration,), SharedMemoryOffer, SharedMemoryOffer())
ABANDON_STORE = Operation("abandon_store", None, (EngineKey, int), bool, False)

OPERATIONS = (
    GET_CHUNK_SIZE,
    GET_EXPERIMENTAL,
    PING,
    NOOP,
    CLEAR,
    HELLO,
    LOOKUP,
    QUERY_PREFETCH_STATUS,
    WAIT_PREFETCH_STATUS,
    QUERY_PREFETCH_LOOKUP_HITS,
    FREE_LOOKUP_LOCKS,
    END_SESSION,
    REPORT_BLOCK_ALLOCATION,
    REGISTER_ENGINE_DRIVEN,
    UNREGISTER_ENGINE_DRIVEN,
    PREPARE_STORE,
    COMMIT_STORE,
    PREPARE_RETRIEVE,
    COMMIT_RETRIEVE,
    REGISTER_WORKER,
    ABANDON_STORE,
)
"""The request types whose payloads core can read."""


class KnownRequest(NamedTuple):
    """A name of the protocol, and what to answer when no handler is registered.  None is an answer without a result frame."""

    name: str
    wire_id: int | None
    negative: Any


_NOT_MOVED = (b"", False)
"""No completion event, nothing stored or retrieved."""

_HANDLED_BY_PLUGINS = (
    KnownRequest("register_kv_cache", 1, None),
    KnownRequest("unregister_kv_cache", 2, None),
    KnownRequest("register_q_cache", 3, None),
    KnownRequest("unregister_q_cache", 4, None),
    KnownRequest("store_q", 5, _NOT_MOVED),
    KnownRequest("store", 6, _NOT_MOVED),
    KnownRequest("retrieve", 7, _NOT_MOVED),
    KnownRequest("cb_register_rope", 25, None),
    KnownRequest("cb_unregister_rope", 26, None),
    KnownRequest("cb_retrieve_pre_computed", 27, _NOT_MOVED),
    KnownRequest("cb_unified_lookup", 28, None),
    # A task that does not exist; asking for it gives nil ("not yet") until the peer's own deadline makes it a miss.
    # An empty list would have the wrong length for every peer that asked for something.
    KnownRequest("p2p_lookup_and_lock", 29, -1),
    KnownRequest("p2p_query_lookup_results", 30, None),
    KnownRequest("p2p_unlock_objects", 31, None),
    KnownRequest("cb_protocol_handshake", 33, (1, False)),
    KnownRequest("cb_reorder_plan", None, []),
    # Without a result frame: the stream ends before its first event.
    KnownRequest("subscribe_kv_events", None, None),
    KnownRequest(
        "server_module_call",
        None,
        {"success": False, "payload": b"", "error": "no plugin of this server handles module calls"},
    ),
)

KNOWN_REQUESTS = (
    *(KnownRequest(operation.name, operation.wire_id, operation.negative) for operation in OPERATIONS),
    *_HANDLED_BY_PLUGINS,
)
"""Every name and number of the protocol."""
