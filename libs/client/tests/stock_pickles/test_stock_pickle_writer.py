from __future__ import annotations

import io
import itertools
import pickletools
import tracemalloc

import msgspec
import pytest

from lmcache_client import stock_pickle_writer
from lmcache_client.errors import ProtocolError
from lmcache_client.messages import PrepareRetrieveReply, RetrieveContext, SlotDescriptor
from lmcache_client.stock_pickle_writer import inband_reply, pickle_tensors

GLOBALS = {"functools partial", "torch frombuffer", "torch bfloat16", "torch reshape"}


def test_the_pickle_names_only_what_it_needs() -> None:
    message = b"".join(pickle_tensors("bfloat16", (2, 3), [bytes(12), b"a" * 12]))
    pickletools.dis(message, out=io.StringIO())  # raises if the pickle leaves anything but its result
    opcodes = list(pickletools.genops(message))
    texts = [str(argument) for opcode, argument, _ in opcodes if opcode.name == "SHORT_BINUNICODE"]
    names = {" ".join(pair) for pair in itertools.pairwise(texts)} & GLOBALS
    assert names == GLOBALS
    assert sum(opcode.name == "STACK_GLOBAL" for opcode, _, _ in opcodes) == len(GLOBALS)
    assert [argument for opcode, argument, _ in opcodes if opcode.name == "BYTEARRAY8"] == [bytes(12), b"a" * 12]


def test_chunks_are_passed_on_and_not_copied() -> None:
    chunks: list[bytes | bytearray | memoryview] = [bytearray(4), memoryview(bytearray(4)), bytes(4)]
    pieces = pickle_tensors("uint8", (4,), chunks)
    assert [piece for piece in pieces if any(piece is chunk for chunk in chunks)] == chunks


def test_the_reply_is_what_msgspec_would_encode() -> None:
    chunks = [b"ab" * 6, b"cd" * 6]
    data = b"".join(pickle_tensors("bfloat16", (2, 3), chunks))
    context = RetrieveContext((SlotDescriptor(4096, 12, (2, 3), "bfloat16"),))
    for expected in (PrepareRetrieveReply(True, data), PrepareRetrieveReply(True, data, context)):
        frame = inband_reply("bfloat16", (2, 3), chunks, expected.context)
        assert msgspec.msgpack.decode(frame, type=PrepareRetrieveReply) == expected


def test_the_reply_is_one_copy_of_the_chunks() -> None:
    chunks = [memoryview(bytearray(4 << 20)) for _ in range(2)]
    tracemalloc.start()
    frame = inband_reply("uint8", (4, 1 << 20), chunks)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 8 << 20 < len(memoryview(frame)) <= peak < (8 << 20) + (64 << 10)


def test_refuses_chunks_that_are_not_the_tensor() -> None:
    with pytest.raises(ValueError, match="chunk 1 has 11 bytes"):
        pickle_tensors("bfloat16", (2, 3), [bytes(12), bytes(11)])
    with pytest.raises(ValueError, match="'complex64' is not one that this server stores"):
        pickle_tensors("complex64", (1,), [bytes(8)])


def test_refuses_more_than_a_frame_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(b"".join(pickle_tensors("uint8", (100,), [bytes(100)])))
    monkeypatch.setattr(stock_pickle_writer, "REPLY_MAX_BYTES", size)
    inband_reply("uint8", (100,), [bytes(100)])
    with pytest.raises(ProtocolError, match="shared memory has no such limit"):
        inband_reply("uint8", (101,), [bytes(101)])
