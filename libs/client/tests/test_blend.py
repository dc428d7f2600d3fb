from __future__ import annotations

import msgspec
import pytest

from lmcache_client import (
    BLEND_COMMIT,
    BLEND_LOOKUP,
    BLEND_PREPARE,
    EngineKey,
    ProtocolError,
    SlotDescriptor,
    encode_tokens,
)
from lmcache_client.blend import BlendAnswer, BlendSegment, BlendSlots
from lmcache_client.codec import OperationCodec, encode_result
from lmcache_client.operations import KNOWN_REQUESTS, Operation

KEY = EngineKey("m", 1, None, encode_tokens(range(64)), 0, 64, "r1")
SEGMENTS = (BlendSegment(0, 16, 32, 48, b"h" * 32), BlendSegment(48, 64, 48, 64, b"i" * 32, exact=True, follows=True))
SLOT = SlotDescriptor(4096, 128, (2, 1, 16, 2), "bfloat16")


@pytest.mark.parametrize("operation", [BLEND_LOOKUP, BLEND_PREPARE, BLEND_COMMIT], ids=lambda each: each.name)
def test_they_go_by_names_that_nothing_else_has_and_fail_with_a_result(operation: Operation) -> None:
    codec = OperationCodec(operation)
    assert operation.wire_id is None
    assert operation.name not in {request.name for request in KNOWN_REQUESTS}
    assert codec.decode_result(codec.negative) == operation.negative


@pytest.mark.parametrize("answer", [BlendAnswer(), BlendAnswer(16), BlendAnswer(16, SEGMENTS)])
def test_an_answer_arrives_as_it_was_sent(answer: BlendAnswer) -> None:
    assert OperationCodec(BLEND_LOOKUP).decode_result(encode_result(answer)) == answer


def test_segments_come_back_as_they_were_given() -> None:
    codec = OperationCodec(BLEND_PREPARE)
    key, segments, instance = codec.decode_payload(codec.encode_payload((KEY, SEGMENTS, 7)))
    assert (key.request_id, segments, instance) == ("r1", SEGMENTS, 7)


def test_a_later_version_may_say_more_of_a_segment_and_not_less() -> None:
    decode = msgspec.msgpack.Decoder(BlendSegment).decode
    assert decode(msgspec.msgpack.encode([0, 16, 32, 48, b"h" * 32, False, False, "more"])) == SEGMENTS[0]
    with pytest.raises(msgspec.ValidationError):
        decode(msgspec.msgpack.encode([0, 16, 32, 48]))
    codec = OperationCodec(BLEND_LOOKUP)
    with pytest.raises(ProtocolError):
        codec.decode_result([msgspec.msgpack.encode(["many", []])])


def test_a_refusal_has_a_place_for_each_segment_that_was_asked_for() -> None:
    assert BlendSlots().of(2) == (None, None)
    assert BlendSlots((SLOT, None)).of(2) == (SLOT, None)
