from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_client import operations as ops
from lmcache_client.codec import OperationCodec, OperationTable, decode_operation_frame, encode_result, refusal
from lmcache_client.engine_key import EngineKey, encode_tokens
from lmcache_client.errors import ProtocolError
from lmcache_client.messages import (
    BlockAllocation,
    ClientHello,
    EngineDrivenRegistration,
    LayoutPart,
    PrepareRetrieveReply,
    PrepareStoreReply,
    RetrieveContext,
    ServerHello,
    SharedMemoryOffer,
    SlotDescriptor,
    StoreContext,
    WorkerRegistration,
)
from lmcache_client.operations import Operation

TABLE = OperationTable(ops.OPERATIONS)
CODECS = {operation.name: OperationCodec(operation) for operation in ops.OPERATIONS}

TEXT = st.text(max_size=8)
INTEGER = st.integers(-(2**63), 2**64 - 1)
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=8)
JSON = st.recursive(st.none() | st.booleans() | INTEGER | TEXT, lambda inner: st.lists(inner, max_size=3), max_leaves=5)
SLOTS = st.lists(
    st.builds(SlotDescriptor, INTEGER, INTEGER, st.lists(INTEGER, max_size=4).map(tuple), TEXT), max_size=3
).map(tuple)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: INTEGER,
    str: TEXT,
    float: st.floats(allow_nan=False),
    memoryview: st.binary(max_size=20).map(memoryview),
    int | None: st.none() | INTEGER,
    list[str]: st.lists(TEXT, max_size=3),
    EngineKey: st.builds(
        EngineKey, TEXT, INTEGER, st.none() | INTEGER, TOKENS.map(encode_tokens), INTEGER, INTEGER, TEXT, TEXT,
        st.none() | st.dictionaries(TEXT, JSON, max_size=3), INTEGER,
    ),
    EngineDrivenRegistration: st.builds(
        EngineDrivenRegistration, INTEGER, TEXT, INTEGER, INTEGER, INTEGER, INTEGER, TEXT, st.booleans(), st.none() | INTEGER
    ),
    ClientHello: st.builds(ClientHello, TEXT),
    ServerHello: st.builds(
        ServerHello, TEXT, TEXT, TEXT, INTEGER, TEXT, INTEGER, st.lists(TEXT, max_size=3).map(tuple)
    ),
    WorkerRegistration: st.builds(
        WorkerRegistration, INTEGER, TEXT, INTEGER, INTEGER,
        st.lists(st.builds(LayoutPart, INTEGER, INTEGER, INTEGER, INTEGER, TEXT), max_size=3).map(tuple),
    ),
    list[BlockAllocation]: st.lists(
        st.builds(BlockAllocation, TEXT, st.lists(INTEGER, max_size=3), st.lists(INTEGER, max_size=3)), max_size=3
    ),
    SharedMemoryOffer: st.builds(SharedMemoryOffer, TEXT, INTEGER),
    PrepareStoreReply: st.builds(
        PrepareStoreReply,
        st.just(StoreContext()) | st.builds(StoreContext, SLOTS, st.lists(INTEGER, max_size=3).map(tuple)),
    ),
    PrepareRetrieveReply: st.builds(
        PrepareRetrieveReply,
        st.booleans(),
        st.binary(max_size=20),
        st.just(RetrieveContext()) | st.builds(RetrieveContext, SLOTS),
    ),
}  # fmt: skip
OPERATIONS = st.sampled_from(ops.OPERATIONS)


# Operation frames


@pytest.mark.parametrize("operation", ops.OPERATIONS, ids=lambda operation: operation.name)
def test_an_operation_is_found_by_number_and_by_name(operation: Operation) -> None:
    frames = [msgspec.msgpack.encode(operation.name)]
    if operation.wire_id is not None:
        frames = [bytes([operation.wire_id]), bytes([0xCC, operation.wire_id]), *frames]
    for frame in frames:
        assert TABLE.find(frame).operation is operation
        assert TABLE.find(memoryview(frame)).operation is operation
    assert TABLE.find(frames[0]).frame == frames[0]


@pytest.mark.parametrize(
    "frame",
    [b"", b"\x00", b"\xff", b"\xc0", b"\xc3", b"\xcb\x40\x35" + bytes(6), b"\x15\x15", b"\xc4\x04ping", b"\x91\x15", b"\x81",
     b"\xa4pin", b"\xa2\xff\xfe", b"\xdb\xff\xff\xff\xff", b"\x91" * 5000, b"\x22", b"\x7f", b"\xa4Ping", b"\xa0"],
)  # fmt: skip
def test_other_operation_frames_are_refused_and_answered_empty(frame: bytes) -> None:
    with pytest.raises(ProtocolError, match="operation frame"):
        TABLE.find(frame)
    assert refusal(frame) == ()


def test_an_unknown_name_is_shown_shortened() -> None:
    with pytest.raises(ProtocolError) as caught:
        TABLE.find(msgspec.msgpack.encode("x" * 100_000))
    assert len(str(caught.value)) < 200


def test_operations_may_not_share_a_label() -> None:
    for other in (Operation("ping", 99, (), None), Operation("other", 22, (), None)):
        with pytest.raises(ValueError, match=r"'ping' and '(ping|other)' are both called"):
            OperationTable([ops.PING, other])


def test_an_operation_without_a_number_travels_by_name() -> None:
    operation = Operation("acme_touch", None, (str,), bool, False)
    codec = OperationTable([operation]).find(b"\xaaacme_touch")
    assert (codec.operation, codec.frame) == (operation, b"\xaaacme_touch")


# Payloads and results


@given(st.data())
def test_payloads_round_trip(data: st.DataObject) -> None:
    codec = OperationCodec(data.draw(OPERATIONS))
    payload = tuple(data.draw(VALUES[kind]) for kind in codec.operation.payload)
    assert codec.decode_payload(codec.encode_payload(payload)) == payload


@given(st.data())
def test_results_round_trip(data: st.DataObject) -> None:
    codec = OperationCodec(data.draw(OPERATIONS))
    result = None if codec.operation.result is None else data.draw(VALUES[codec.operation.result])
    frames = encode_result(result)
    assert len(frames) == (result is not None)
    assert codec.decode_result(frames) == result


@given(st.data())
def test_random_frames_are_read_or_refused(data: st.DataObject) -> None:
    codec = CODECS[data.draw(st.sampled_from(sorted(CODECS)))]
    valid = codec.encode_payload(tuple(data.draw(VALUES[kind]) for kind in codec.operation.payload))
    frames = [data.draw(st.just(frame) | st.binary(max_size=40) | mutations(frame)) for frame in valid]
    for call in (
        lambda: codec.decode_payload(frames),
        lambda: codec.decode_payload([*frames, b"\x01"]),
        lambda: codec.decode_result(frames),
        lambda: decode_operation_frame(frames[0] if frames else b""),
    ):
        try:
            call()
        except ProtocolError:
            continue


@st.composite
def mutations(draw: st.DrawFn, frame: bytes) -> bytes:
    mutated = bytearray(frame)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(mutated)))
        mutated[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(mutated)


@pytest.mark.parametrize(
    ("frame", "value"), [(b"\xc3", True), (b"\xc2", False), (b"\x01", True), (b"\x00", False), (b"\xcc\x02", True)]
)
def test_a_whole_frame_of_bool_takes_integers(frame: bytes, value: bool) -> None:
    [decoded] = CODECS["clear"].decode_payload([frame])
    assert decoded is value
    assert CODECS["commit_store"].decode_result([frame]) is value


def test_a_whole_frame_of_int_takes_bools() -> None:
    [decoded] = CODECS["unregister_kv_cache_engine_driven_context"].decode_payload([b"\xc3"])
    assert type(decoded) is int
    assert decoded == 1


@pytest.mark.parametrize(
    ("name", "frames", "reason"),
    [
        ("ping", [b"\xc3"], r"ping: payload frame 0: Expected `int \| null`, got `bool`"),
        ("clear", [b"\xa1x"], "clear: payload frame 0: Expected"),
        ("clear", [b"\xc0"], "clear: payload frame 0: Expected"),
        ("clear", [b"\xcb" + bytes(8)], "clear: payload frame 0: Expected"),
        ("clear", [], "clear: 0 payload frames, where 1 belong"),
        ("clear", [b"\xc3", b"\xc3"], "clear: 2 payload frames, where 1 belong"),
        ("noop", [b"\xc0"], "noop: 1 payload frames, where 0 belong"),
        ("end_session", [b"\xc4\x01r"], "end_session: payload frame 0: Expected `str`, got `bytes`"),
        ("end_session", [b"\xa2\xff\xfe"], "end_session: payload frame 0: 'utf-8' codec"),
        ("end_session", [b"\x91" * 5000], "end_session: payload frame 0"),
        ("end_session", [b"\xdb\xff\xff\xff\xff"], "end_session: payload frame 0: Input data was truncated"),
        ("wait_prefetch_status", [b"\xa1r", b"\xa1x"], "wait_prefetch_status: payload frame 1"),
        ("report_block_allocation", [b"\x01", b"\xa1m", b"\xdd\xff\xff\xff\xff"], "payload frame 2: Input data was truncated"),
        ("lookup", [b"\x9a" + b"\x01" * 10, b"\x01"], "lookup: payload frame 0: Expected `object`, got `array`"),
        ("lookup", [b"\x80", b"\x01"], "lookup: payload frame 0: Object missing required field `model_name`"),
        ("register_kv_cache_engine_driven_context",
         [msgspec.msgpack.encode({"instance_id": 1, "model_name": "m", "world_size": 1, "block_size": 1, "num_layers": 1,
                                      "hidden_dim_size": 1, "dtype_str": "uint8", "use_mla": 1})],
         r"payload frame 0: Expected `bool`, got `int` - at `\$.use_mla`"),
    ],
)  # fmt: skip
def test_refused_payloads_say_what_and_where(name: str, frames: list[bytes], reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        CODECS[name].decode_payload(frames)


def test_nested_request_configs_do_not_exhaust_the_stack() -> None:
    key = EngineKey("m", 1, 0, encode_tokens([]), 0, 0, "r", "", {"lmcache.a": 1})
    frame = msgspec.msgpack.encode(key).replace(b"lmcache.a\x01", b"lmcache.a" + b"\x91" * 100_000 + b"\x01")
    with pytest.raises(ProtocolError, match="recursion"):
        CODECS["lookup"].decode_payload([frame, b"\x01"])


def test_store_data_and_tokens_are_views_of_the_frames() -> None:
    key = bytearray(msgspec.msgpack.encode(EngineKey("m", 1, 0, encode_tokens([1, 2]), 0, 2, "r")))
    data = bytearray(msgspec.msgpack.encode(b"x" * 300))
    decoded, _, view = CODECS["commit_store"].decode_payload([memoryview(key), b"\x01", memoryview(data)])
    key[key.index(b"\x92\x01\x02") + 1] = 9
    assert decoded.token_ids.decode() == [9, 2]
    data[-1:] = b"y"
    assert view[-2:] == b"xy"


def test_missing_result_is_none_and_extra_frames_are_ignored() -> None:
    assert CODECS["query_prefetch_status"].decode_result([]) is None
    assert CODECS["query_prefetch_status"].decode_result([b"\xc0"]) is None
    assert CODECS["query_prefetch_status"].decode_result([b"\x07", b"junk"]) == 7
    assert CODECS["lookup"].decode_result([b"junk"]) is None
    with pytest.raises(ProtocolError, match="query_prefetch_status: result: Expected"):
        CODECS["query_prefetch_status"].decode_result([b"\xc3"])


@pytest.mark.parametrize(
    ("result", "frames"),
    [(None, ()), (True, (b"\xc3",)), (7, (b"\x07",)), ((b"xx", True), (b"\x92\xc4\x02xx\xc3",)), ("OK", (b"\xa2OK",))],
)
def test_results_are_encoded_bare(result: object, frames: tuple[bytes, ...]) -> None:
    assert encode_result(result) == frames


def test_an_encoded_result_is_passed_on_without_a_copy() -> None:
    encoded = msgspec.Raw(b"\xa2OK")
    [frame] = encode_result(encoded)
    assert isinstance(frame, memoryview)
    assert bytes(frame) == b"\xa2OK"
    assert frame.obj is encoded


def test_wrong_number_of_arguments() -> None:
    with pytest.raises(ProtocolError, match="lookup takes 2 arguments, 1 were given"):
        CODECS["lookup"].encode_payload(["r"])


# Answers for operations without a handler


@pytest.mark.parametrize("label", [6, "store", 7, "retrieve", 5])
def test_transfers_without_a_handler_moved_nothing(label: int | str) -> None:
    assert refusal(msgspec.msgpack.encode(label)) == (b"\x92\xc4\x00\xc2",)


@pytest.mark.parametrize("label", [1, "register_kv_cache", 2, 8, 13, "subscribe_kv_events", 31, 99, "acme"])
def test_operations_without_a_negative_are_answered_without_a_frame(label: int | str) -> None:
    assert refusal(msgspec.msgpack.encode(label)) == ()


@given(st.binary(max_size=30))
def test_a_refusal_never_fails(frame: bytes) -> None:
    assert isinstance(refusal(frame), tuple)
