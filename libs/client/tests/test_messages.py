"""The bytes that the protocol's description gives, and what each message becomes on the wire."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lmcache_client.codec import OperationCodec
from lmcache_client.engine_key import EngineKey, TokenSequence, encode_tokens, read_key
from lmcache_client.messages import (
    BlockAllocation,
    EngineDrivenRegistration,
    PrepareRetrieveReply,
    PrepareStoreReply,
    RetrieveContext,
    SharedMemoryOffer,
    SlotDescriptor,
    StoreContext,
)
from lmcache_client.operations import LOOKUP

KEY_BYTES = (
    b"\x8a\xaamodel_name\xa1m\xaaworld_size\x02\xa9worker_id\x01\xa9token_ids\x93\x01\xcc\xc8\xce\x00\x01\x11\x70"
    b"\xa5start\x00\xa3end\xcd\x01\x00\xaarequest_id\xa1r\xaacache_salt\xa1s"
    b"\xafrequest_configs\x81\xa9lmcache.a\x01\xaenum_kv_readers\x01"
)
SLOT = SlotDescriptor(8192, 12, (2, 3), "bfloat16")
SLOT_BYTES = b"\x84\xa6offset\xcd\x20\x00\xa6length\x0c\xa5shape\x92\x02\x03\xa5dtype\xa8bfloat16"


def test_the_key_of_the_description() -> None:
    key = read_key(KEY_BYTES)
    assert isinstance(key.token_ids, TokenSequence)
    assert (key.token_ids.count, key.token_ids.decode()) == (3, [1, 200, 70000])
    fields = (key.model_name, key.world_size, key.worker_id, key.start, key.end, key.request_id, key.cache_salt)
    assert fields == ("m", 2, 1, 0, 256, "r", "s")
    assert (key.request_configs, key.num_kv_readers) == ({"lmcache.a": 1}, 1)
    [encoded, _] = OperationCodec(LOOKUP).encode_payload([key, 1])
    assert encoded == KEY_BYTES


def test_a_key_of_an_older_or_newer_client() -> None:
    required = {
        "model_name": "m",
        "world_size": 1,
        "worker_id": None,
        "token_ids": [],
        "start": 0,
        "end": 0,
        "request_id": "r",
    }
    older = read_key(msgspec.msgpack.encode(required))
    assert older == EngineKey("m", 1, None, encode_tokens([]), 0, 0, "r", "", None, 0)
    shuffled = {"later": [1], **dict(reversed(required.items()))}
    assert read_key(msgspec.msgpack.encode(shuffled)) == older


@pytest.mark.parametrize(
    ("message", "encoded"),
    [
        (SLOT, SLOT_BYTES),
        (SharedMemoryOffer(), b"\x82\xa8shm_name\xa0\xa9pool_size\x00"),
        (PrepareStoreReply(), b"\x81\xa7context\x80"),
        (PrepareStoreReply(StoreContext((), ())), b"\x81\xa7context\x82\xa5slots\x90\xadchunk_indices\x90"),
        (
            PrepareStoreReply(StoreContext((SLOT,), (4,))),
            b"\x81\xa7context\x82\xa5slots\x91" + SLOT_BYTES + b"\xadchunk_indices\x91\x04",
        ),
        (PrepareRetrieveReply(False), b"\x83\xa7success\xc2\xa4data\xc4\x00\xa7context\x80"),
        (PrepareRetrieveReply(True, b"xx"), b"\x83\xa7success\xc3\xa4data\xc4\x02xx\xa7context\x80"),
        (
            PrepareRetrieveReply(True, context=RetrieveContext((SLOT,))),
            b"\x83\xa7success\xc3\xa4data\xc4\x00\xa7context\x81\xa5slots\x91" + SLOT_BYTES,
        ),
        (
            BlockAllocation("r", [1], [2, 3]),
            b"\x83\xa6req_id\xa1r\xadnew_block_ids\x91\x01\xadnew_token_ids\x92\x02\x03",
        ),
        (
            EngineDrivenRegistration(2**62, "m", 1, 16, 2, 64, "bfloat16", True, 256),
            (
                b"\x89\xabinstance_id\xcf\x40\x00\x00\x00\x00\x00\x00\x00\xaamodel_name\xa1m\xaaworld_size\x01"
                b"\xaablock_size\x10\xaanum_layers\x02\xafhidden_dim_size\x40\xa9dtype_str\xa8bfloat16\xa7use_mla\xc3"
                b"\xb2num_physical_slots\xcd\x01\x00"
            ),
        ),
    ],
)
def test_messages_are_maps_in_the_order_of_their_fields(message: Any, encoded: bytes) -> None:
    assert msgspec.msgpack.encode(message) == encoded
    assert msgspec.msgpack.decode(encoded, type=type(message)) == message
