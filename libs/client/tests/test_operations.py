from __future__ import annotations

import msgspec
import pytest

from lmcache_client.codec import OperationCodec
from lmcache_client.messages import PrepareRetrieveReply, PrepareStoreReply, SharedMemoryOffer, StoreContext
from lmcache_client.operations import KNOWN_REQUESTS, OPERATIONS

# As the protocol's table gives them.
NUMBERS = {
    1: "register_kv_cache", 2: "unregister_kv_cache", 3: "register_q_cache", 4: "unregister_q_cache", 5: "store_q",
    6: "store", 7: "retrieve", 8: "lookup", 9: "query_prefetch_status", 10: "wait_prefetch_status",
    11: "query_prefetch_lookup_hits",
    12: "free_lookup_locks", 13: "end_session", 14: "register_kv_cache_engine_driven_context",
    15: "unregister_kv_cache_engine_driven_context", 16: "prepare_store", 17: "commit_store", 18: "prepare_retrieve",
    19: "commit_retrieve", 20: "clear", 21: "get_chunk_size", 22: "ping", 23: "report_block_allocation", 24: "noop",
    25: "cb_register_rope", 26: "cb_unregister_rope", 27: "cb_retrieve_pre_computed", 28: "cb_unified_lookup",
    29: "p2p_lookup_and_lock", 30: "p2p_query_lookup_results", 31: "p2p_unlock_objects", 32: "get_experimental",
    33: "cb_protocol_handshake",
}  # fmt: skip
NAMES_ONLY = {
    "hello",
    "register_worker",
    "abandon_store",
    "cb_reorder_plan",
    "subscribe_kv_events",
    "server_module_call",
}


def test_every_number_and_name_is_known_once() -> None:
    assert {request.wire_id: request.name for request in KNOWN_REQUESTS if request.wire_id is not None} == NUMBERS
    assert {request.name for request in KNOWN_REQUESTS if request.wire_id is None} == NAMES_ONLY
    assert len(KNOWN_REQUESTS) == len(NUMBERS) + len(NAMES_ONLY)


def test_what_a_failed_operation_answers() -> None:
    negatives = {request.name: request.negative for request in KNOWN_REQUESTS if request.negative is not None}
    assert negatives == {
        "get_experimental": [],
        "ping": False,
        "noop": "",
        "query_prefetch_status": 0,
        "wait_prefetch_status": 0,
        "query_prefetch_lookup_hits": 0,
        "register_kv_cache_engine_driven_context": SharedMemoryOffer("", 0),
        "register_worker": SharedMemoryOffer("", 0),
        "abandon_store": False,
        "prepare_store": PrepareStoreReply(StoreContext((), ())),
        "commit_store": False,
        "prepare_retrieve": PrepareRetrieveReply(success=False),
        "commit_retrieve": True,
        "store": (b"", False),
        "retrieve": (b"", False),
        "store_q": (b"", False),
        "cb_retrieve_pre_computed": (b"", False),
        "cb_reorder_plan": [],
        "cb_protocol_handshake": (1, False),
        "p2p_lookup_and_lock": -1,
        "server_module_call": {
            "success": False, "payload": b"", "error": "no plugin of this server handles module calls"
        },
    }  # fmt: skip


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_a_negative_is_of_the_type_of_the_result(operation: object) -> None:
    codec = OperationCodec(operation)  # type: ignore[arg-type]
    frames = codec.negative
    if frames:
        assert codec.decode_result(frames) == codec.operation.negative
        assert msgspec.msgpack.encode(codec.operation.negative) == frames[0]
