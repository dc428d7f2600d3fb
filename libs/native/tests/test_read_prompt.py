"""The compiled reader of prompts says what the pure one says, whatever it is given."""

from __future__ import annotations

import random
import struct
import threading

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from lmcache_core.kernels.choice import PURE

native = pytest.importorskip("lmcache_native", reason="lmcache-native is not installed")

FORMS = ("B", ">BB", ">BH", ">BI", ">BQ", ">Bb", ">Bh", ">Bi", ">Bq")
LEADS = (None, 0xCC, 0xCD, 0xCE, 0xCF, 0xD0, 0xD1, 0xD2, 0xD3)
MOST = (0x7F, 0xFF, 0xFFFF, 0xFFFFFFFF, 2**64 - 1, 0x7F, 0x7FFF, 0x7FFFFFFF, 2**63 - 1)


@st.composite
def integer(draw: st.DrawFn) -> bytes:
    """One of the msgpack forms of a token, or of a number just beyond."""
    token = draw(st.sampled_from([0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32]) | st.integers(0, 2**32 - 1))
    form = draw(st.sampled_from([form for form, most in enumerate(MOST) if token <= most]))
    return struct.pack(FORMS[form], token) if LEADS[form] is None else struct.pack(FORMS[form], LEADS[form], token)


def both(frame: bytes, offset: int, count: int, chunk_tokens: int, previous: bytes, carry: bytes) -> None:
    """The same answer, or both refuse."""
    try:
        expected = PURE.read_prompt(frame, offset, count, chunk_tokens, previous, carry)
    except ValueError:
        with pytest.raises(ValueError, match=r"token|frame"):
            native.read_prompt(frame, offset, count, chunk_tokens, previous, carry)
        return
    assert native.read_prompt(frame, offset, count, chunk_tokens, previous, carry) == expected
    assert native.read_prompt(memoryview(frame), offset, count, chunk_tokens, previous, carry) == expected


@given(
    forms=st.lists(integer() | st.binary(min_size=1, max_size=3), max_size=40),
    before=st.binary(max_size=5),
    behind=st.binary(max_size=5),
    more=st.integers(-3, 3),
    chunk_tokens=st.integers(1, 300),
    carry=st.integers(0, 299),
    previous=st.sampled_from([b"", bytes(32), b"seed", b"x" * 100]),
)
def test_it_equals_the_pure_one(
    forms: list[bytes], before: bytes, behind: bytes, more: int, chunk_tokens: int, carry: int, previous: bytes
) -> None:
    frame = before + b"".join(forms) + behind
    carried = random.Random(carry).randbytes(4 * min(carry, chunk_tokens - 1))
    both(frame, len(before), max(0, len(forms) + more), chunk_tokens, previous, carried)


@given(st.binary(max_size=40), st.integers(0, 45))
def test_it_takes_from_random_bytes_what_the_pure_one_takes(frame: bytes, count: int) -> None:
    both(frame, 0, count, 4, bytes(32), b"")


@pytest.mark.parametrize("chunk_tokens", [1, 15, 16, 17, 248, 249, 256, 512, 1024, 4096])
def test_long_prompts_hash_as_the_definition_says(chunk_tokens: int) -> None:
    """Chunks of one BLAKE3 block, of one of its chunks and of a tree of them, beyond the size where the GIL is released."""
    tokens = [random.Random(3).randrange(2**32) for _ in range(3 * 4096 + 7)]
    frame = msgspec.msgpack.encode(tokens)[3:]
    hashes, ends, rest, end = native.read_prompt(frame, 0, len(tokens), chunk_tokens, b"root", b"")
    previous, data = b"root", struct.pack(f">{len(tokens)}I", *tokens)
    for number, value in enumerate(hashes):
        previous = blake3(previous + data[4 * chunk_tokens * number : 4 * chunk_tokens * (number + 1)]).digest()
        assert value == previous
    assert (len(hashes), end) == (len(tokens) // chunk_tokens, len(frame))
    assert rest == data[4 * chunk_tokens * len(hashes) :]
    assert (ends, rest) == PURE.read_prompt(frame, 0, len(tokens), chunk_tokens, b"root", b"")[1:3]


@pytest.mark.parametrize("variant", range(0, 8193, 512))
def test_blake3_is_blake3_at_every_length(variant: int) -> None:
    """The vendored one against the module that core uses, over inputs that take every path through its tree."""
    for size in {max(4, variant - 4), max(4, variant), variant + 4}:
        data = bytes(at % 251 for at in range(size))
        tokens = struct.unpack(f">{size // 4}I", data)
        frame = msgspec.msgpack.encode([0, *tokens])[1 if size // 4 < 15 else 3 :]
        hashes, *_ = native.read_prompt(frame, 1, len(tokens), len(tokens), b"\x00", b"")
        assert hashes == [blake3(b"\x00" + data).digest()]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((b"\x01", 2, 0, 4, b"", b""), "offset"),
        ((b"\x01", -1, 0, 4, b"", b""), "offset"),
        ((b"\x01", 0, -1, 4, b"", b""), "count"),
        ((b"\x01", 0, 2**62, 4, b"", b""), "frame ends"),
        ((b"\x01", 0, 1, 0, b"", b""), "chunk_tokens"),
        ((b"\x01", 0, 1, 4, b"", b"123"), "carry"),
        ((b"\x01", 0, 1, 4, b"x", bytes(16)), "carry"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[bytes, int, int, int, bytes, bytes], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        native.read_prompt(*arguments)


def test_others_run_while_a_long_prompt_is_read() -> None:
    """Both threads read for long; were the GIL kept, the counter would not change while one does."""
    frame = bytes(1 << 23)
    done = threading.Event()

    def read() -> None:
        native.read_prompt(frame, 0, len(frame), 256, bytes(32), b"")
        done.set()

    reader = threading.Thread(target=read)
    turns = 0
    reader.start()
    while not done.is_set():
        turns += 1
    reader.join()
    assert turns > 1000
