from __future__ import annotations

import pickle
import pickletools
import re
import struct
import tracemalloc
from math import prod
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmcache_client.errors import ProtocolError
from lmcache_client.layout import ITEM_BYTES
from lmcache_client.stock_pickles import PickledTensor, read_tensors

OPCODES = {opcode.name: ord(opcode.code) for opcode in pickletools.opcodes}
ALLOWED_NAMES = """
    FRAME MARK MEMOIZE BINGET LONG_BINGET NEWFALSE BININT BININT1 BININT2 LONG1 SHORT_BINUNICODE SHORT_BINBYTES BINBYTES
    BINBYTES8 EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 TUPLE STACK_GLOBAL REDUCE EMPTY_LIST APPEND APPENDS STOP
"""
ALLOWED = {OPCODES[name] for name in ALLOWED_NAMES.split()}
KEY = re.compile(rb"(?<=X\x0e\x00\x00\x00)[0-9]{14}")
RELAXED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def assert_well_formed(tensors: list[PickledTensor], message: bytes) -> None:
    for tensor in tensors:
        assert tensor.data.nbytes == prod(tensor.shape) * ITEM_BYTES[tensor.dtype] > 0
        assert tensor.data.obj is message


# What stock engines send


def test_reads_recorded_tensors(recorded: dict[str, bytes]) -> None:
    first, second = read_tensors(recorded["two_bfloat16"], 2)
    assert (first.dtype, first.shape, bytes(first.data)) == ("bfloat16", (2, 2), bytes.fromhex("803f004040408040"))
    assert bytes(second.data) == bytes.fromhex("80bf003f0000803f")
    assert_well_formed([first, second], recorded["two_bfloat16"])


def test_reads_a_recorded_tensor_of_a_type_without_storage_class(recorded: dict[str, bytes]) -> None:
    [tensor] = read_tensors(recorded["one_float8"], 1)
    assert (tensor.dtype, tensor.shape, bytes(tensor.data)) == ("float8_e4m3fn", (3,), b"\x38\x40\xb8")


def test_the_pickles_of_these_tests_are_those_of_torch(fake_torch: Any, recorded: dict[str, bytes]) -> None:
    """Up to the storages' keys, which are addresses (KEY), all of 14 digits."""
    data = (bytes.fromhex("803f004040408040"), bytes.fromhex("80bf003f0000803f"))
    made = pickle.dumps([fake_torch.tensor("bfloat16", [2, 2], chunk) for chunk in data])
    assert re.sub(KEY, b"key", made) == re.sub(KEY, b"key", recorded["two_bfloat16"])


@RELAXED
@given(
    dtype=st.sampled_from(sorted(ITEM_BYTES)),
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    count=st.integers(0, 6),
    protocol=st.sampled_from([4, 5]),
    seed=st.binary(min_size=1, max_size=8),
)
def test_reads_what_was_written(
    fake_torch: Any, dtype: str, shape: list[int], count: int, protocol: int, seed: bytes
) -> None:
    size = prod(shape) * ITEM_BYTES[dtype]
    chunks = [(bytes([number]) + seed * size)[:size] for number in range(count)]
    message = pickle.dumps([fake_torch.tensor(dtype, shape, chunk) for chunk in chunks], protocol)
    tensors = read_tensors(message, count)
    assert [(t.dtype, t.shape, bytes(t.data)) for t in tensors] == [(dtype, tuple(shape), chunk) for chunk in chunks]
    assert_well_formed(tensors, message)


def test_reads_lists_that_are_appended_in_batches_and_long_memo_numbers(fake_torch: Any) -> None:
    chunks = [struct.pack("<Q", number) for number in range(2100)]  # a pickler appends 1,000 at a time
    message = pickle.dumps([fake_torch.tensor("uint8", (8,), chunk) for chunk in chunks])
    assert [bytes(tensor.data) for tensor in read_tensors(message, 2100)] == chunks


def test_a_tensor_in_the_list_twice_is_one_view_twice(fake_torch: Any) -> None:
    tensor = fake_torch.tensor("uint8", (3,), b"abc")
    assert [bytes(tensor.data) for tensor in read_tensors(pickle.dumps([tensor, tensor]), 2)] == [b"abc", b"abc"]


def test_large_tensors_lie_outside_of_frames_and_are_not_copied(fake_torch: Any) -> None:
    size = 8 << 20
    message = pickle.dumps([fake_torch.tensor("float16", (2, size // 4), bytes([n]) * size) for n in range(2)])
    tracemalloc.start()
    tensors = read_tensors(memoryview(message), 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [tensor.data[-1] for tensor in tensors] == [0, 1]
    assert_well_formed(tensors, message)
    assert peak < 64 << 10


def test_strides_of_dimensions_of_size_one_mean_nothing(fake_torch: Any) -> None:
    [tensor] = read_tensors(pickle.dumps([fake_torch.tensor("uint8", (2, 1, 3), b"abcdef", strides=(3, 77, 1))]), 1)
    assert tensor.shape == (2, 1, 3)


# What they do not send


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"strides": (1, 2)}, "not contiguous"),
        ({"strides": (3, 1)}, "not contiguous"),
        ({"strides": (2,)}, "strides are not"),
        ({"offset": 1}, "offset"),
        ({"shape": (2, 3)}, "comes with 8 bytes"),
        ({"shape": (2, 1)}, "comes with 8 bytes"),
        ({"shape": (), "strides": ()}, "not 1 to 8"),
        ({"shape": (1,) * 7 + (2, 2), "strides": (4,) * 7 + (2, 1)}, "not 1 to 8"),
        ({"shape": (-2, -2), "strides": (-2, 1)}, "not 1 to 8"),
        ({"shape": (True, 4), "strides": (4, 1)}, "opcode 0x88"),
        ({"shape": (2**62, 2**62, 0), "data": b""}, "comes with 0 bytes"),
        ({"data": bytes(7)}, "comes with 7 bytes"),
    ],
)
def test_refuses_other_tensors(fake_torch: Any, changes: dict[str, Any], reason: str) -> None:
    valid = {"dtype": "bfloat16", "shape": (2, 2), "data": bytes(8)}
    assert read_tensors(pickle.dumps([fake_torch.tensor(**valid)]), 1)
    with pytest.raises(ProtocolError, match=reason):
        read_tensors(pickle.dumps([fake_torch.tensor(**{**valid, **changes})]), 1)


def test_refuses_more_tensors_than_expected(fake_torch: Any) -> None:
    message = pickle.dumps([fake_torch.tensor("uint8", (1,), b"a")] * 3)
    with pytest.raises(ProtocolError, match="more tensors than the 2"):
        read_tensors(message, 2)


@pytest.mark.parametrize("value", [None, {}, (), "text", b"bytes", 1, [1], [[]], [()], ["text"], [b"bytes"], [False]])
@pytest.mark.parametrize("protocol", range(6))
def test_refuses_other_values(value: Any, protocol: int) -> None:
    with pytest.raises(ProtocolError):
        read_tensors(pickle.dumps(value, protocol), 8)


def test_refuses_a_tensor_that_is_not_in_a_list(fake_torch: Any) -> None:
    tensor = fake_torch.tensor("uint8", (1,), b"a")
    for value in (tensor, (tensor,), [[tensor]], {"a": tensor}):
        with pytest.raises(ProtocolError):
            read_tensors(pickle.dumps(value), 8)


@pytest.mark.parametrize("opcode", sorted(set(range(256)) - ALLOWED))
def test_refuses_every_other_opcode(opcode: int) -> None:
    message = b"\x80\x04]\x94(" + bytes([opcode]) + b"\x00\x00\x00\x00\x00\x00\x00\x00\n\n."
    with pytest.raises(ProtocolError, match=f"opcode 0x{opcode:02x} does not occur"):
        read_tensors(message, 8)


def test_the_opcodes_that_are_accepted_are_those_of_the_format(fake_torch: Any) -> None:
    """Each one that the reader takes is one that a pickler writes for tensors of some size, or the longer form of one."""
    messages = [
        pickle.dumps([fake_torch.tensor(dtype, (1, 300), bytes(300 * size))]) for dtype, size in ITEM_BYTES.items()
    ]
    messages.append(pickle.dumps([fake_torch.tensor("uint8", (1, 1, 70000, 1), bytes(70000))] * 2))
    messages.append(pickle.dumps([fake_torch.tensor("uint8", (1, 1, 1), b"a") for _ in range(30)]))
    seen = {ord(opcode.code) for message in messages for opcode, _, _ in pickletools.genops(message)}
    longer_forms = {OPCODES[name] for name in ("LONG_BINGET", "LONG1", "BINBYTES8")}
    assert seen | longer_forms == ALLOWED | {OPCODES["PROTO"]}


@pytest.mark.parametrize(
    "tail",
    [
        b"t.", b"e.", b"a.", b"R.", b"\x93.", b"\x94.", b"\x85.", b"(.", b"h\x00.", b"j\xff\xff\xff\xff.", b"]].", b"](t.",
        b"]\x94h\x00a.", b"]\x94(h\x00e.", b"](]e.", b"]K", b"]B\x00\x00\x00", b"]\x8c\x05abc", b"]\x8c\x01\xffa.", b"]..",
        b"]\x8a\x09" + bytes(9) + b".", b"](K\x01\x94" + b"h\x00" * 600 + b"e.", b"])\x94" + b"h\x00h\x00\x86\x94" * 300 + b".",
        b")K\x01R.", b"](K\x01K\x02\x93e.", b"](\x8c\x05torch\x8c\x08bfloat16\x93)Re.",
    ],
)  # fmt: skip
def test_refuses_malformed_structure(tail: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_tensors(b"\x80\x04" + tail, 8)


@pytest.mark.parametrize("use", [b"h\x3ch\x3c\x93.", b"h\x3c)R.", b"h\x3ch\x3cR."])
def test_exponentially_large_tuples_are_never_looked_into(use: bytes) -> None:
    doubling = b")\x94" + b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86\x94" for n in range(60))
    with pytest.raises(ProtocolError, match=r"a global is named|a call is not one"):
        read_tensors(b"\x80\x04" + doubling + use, 64)


def test_only_false_means_no_gradient(recorded: dict[str, bytes]) -> None:
    message = recorded["one_float8"]
    for other in (b"K\x00", b")", b"h\x00"):
        length = struct.pack("<Q", len(message) - 11 - 1 + len(other))
        changed = message[:3] + length + message[11:].replace(b"\x89\x8c\x0bcoll", other + b"\x8c\x0bcoll")
        assert len(changed) == len(message) - 1 + len(other)
        with pytest.raises(ProtocolError, match="an offset into its storage, a gradient or hooks"):
            read_tensors(changed, 1)


def test_integers_are_short() -> None:
    with pytest.raises(ProtocolError, match="an integer has 9 bytes"):
        read_tensors(b"\x80\x04\x8a\x09" + bytes(9) + b".", 1)


@pytest.mark.parametrize(
    "claim",
    [
        b"]\x95" + b"\xff" * 8 + b".", b"]\x8e" + b"\xff" * 7 + b"\x7f.", b"]\x8e" + b"\xff" * 8 + b".",
        b"]B\xff\xff\xff\xff.", b"]\x8c\xff.", b"]\x8a\xff.", b"]\x8b\xff\xff\xff\x7f.",
        b"]\x96" + b"\xff" * 8 + b".",
    ],
)  # fmt: skip
def test_a_claimed_size_is_not_allocated(claim: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        read_tensors(b"\x80\x04" + claim, 8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 10


def test_work_is_bounded_by_the_tensors_that_are_expected() -> None:
    with pytest.raises(ProtocolError, match="more opcodes than 2 tensors take"):
        read_tensors(b"\x80\x04]" + b"\x94" * 100_000 + b".", 2)


def test_every_truncation_and_any_tail_is_refused(recorded: dict[str, bytes]) -> None:
    message = recorded["two_bfloat16"]
    for end in range(len(message)):
        with pytest.raises(ProtocolError):
            read_tensors(message[:end], 2)
    with pytest.raises(ProtocolError, match="1 bytes follow"):
        read_tensors(message + b".", 2)


def test_frames_are_checked(recorded: dict[str, bytes]) -> None:
    message = recorded["two_bfloat16"]
    length = struct.unpack_from("<Q", message, 3)[0]
    assert message[2] == OPCODES["FRAME"]
    for wrong, reason in ((length + 1, "past the end"), (9, "crosses the end of its frame")):
        with pytest.raises(ProtocolError, match=reason):
            read_tensors(message[:3] + struct.pack("<Q", wrong) + message[11:], 2)
    nested = message[:3] + struct.pack("<Q", length + 9) + message[2:]
    with pytest.raises(ProtocolError, match="inside of another"):
        read_tensors(nested, 2)
