"""Reading prompts: both implementations against the definition."""

from __future__ import annotations

import itertools
import struct
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from lmcache_client.errors import ConfigError
from lmcache_client.hash_chain import ReadPrompt
from lmcache_core.kernels.choice import PURE, choose_kernels

ROOT = bytes(range(32))
PACKERS: tuple[tuple[int, Callable[[int], bytes]], ...] = (
    (0x7F, lambda token: bytes((token,))),
    (0xFF, lambda token: struct.pack(">BB", 0xCC, token)),
    (0xFFFF, lambda token: struct.pack(">BH", 0xCD, token)),
    (0xFFFFFFFF, lambda token: struct.pack(">BI", 0xCE, token)),
    (2**64, lambda token: struct.pack(">BQ", 0xCF, token)),
    (0x7F, lambda token: struct.pack(">Bb", 0xD0, token)),
    (0x7FFF, lambda token: struct.pack(">Bh", 0xD1, token)),
    (0x7FFFFFFF, lambda token: struct.pack(">Bi", 0xD2, token)),
    (2**63 - 1, lambda token: struct.pack(">Bq", 0xD3, token)),
)


@pytest.fixture(scope="module", params=["pure", "native"])
def read_prompt(request: pytest.FixtureRequest) -> ReadPrompt:
    if request.param == "pure":
        return PURE.read_prompt
    try:
        return choose_kernels("on").read_prompt
    except ConfigError as error:
        pytest.skip(str(error))


@st.composite
def integers(draw: st.DrawFn) -> tuple[int, bytes]:
    """A token and one of its msgpack forms."""
    token = draw(st.sampled_from([0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1]) | st.integers(0, 2**32 - 1))
    shortest = draw(st.booleans())
    forms = [pack(token) for most, pack in PACKERS if token <= most]
    return token, forms[0] if shortest else draw(st.sampled_from(forms))


@given(
    st.lists(integers(), max_size=60),
    st.integers(1, 20),
    st.lists(st.integers(0, 2**32 - 1), max_size=19),
    st.binary(max_size=8),
    st.binary(max_size=8),
    st.booleans(),
)
def test_it_is_what_it_says(
    read_prompt: ReadPrompt,
    encoded: list[tuple[int, bytes]],
    chunk_tokens: int,
    carry: list[int],
    before: bytes,
    behind: bytes,
    as_view: bool,
) -> None:
    carry = carry[: chunk_tokens - 1]
    forms = [form for _, form in encoded]
    frame = before + b"".join(forms) + behind
    carried = struct.pack(f">{len(carry)}I", *carry)
    tokens = carry + [token for token, _ in encoded]
    big_endian = struct.pack(f">{len(tokens)}I", *tokens)

    expected, previous = [], ROOT
    for start in range(0, len(tokens) // chunk_tokens * chunk_tokens, chunk_tokens):
        previous = blake3(previous + big_endian[4 * start : 4 * (start + chunk_tokens)]).digest()
        expected.append(previous)
    offsets = [0, *itertools.accumulate(map(len, forms))]
    ends = [offsets[(number + 1) * chunk_tokens - len(carry)] for number in range(len(expected))]
    rest = big_endian[4 * chunk_tokens * len(expected) :]
    end = len(before) + offsets[-1]

    given_frame = memoryview(frame) if as_view else frame
    count = len(encoded)
    assert read_prompt(given_frame, len(before), count, chunk_tokens, ROOT, carried) == (expected, ends, rest, end)
    assert read_prompt(given_frame, len(before), count, chunk_tokens, b"", carried) == ([], [], big_endian, end)


@pytest.mark.parametrize(
    "encoded",
    [
        b"\xff",
        b"\xcf\x00\x00\x00\x01\x00\x00\x00\x00",
        b"\xcf" + b"\xff" * 8,
        b"\xd3\x80" + bytes(7),
        b"\xd0\x80",
        b"\xc3",
        b"\xc0",
        b"\xc1",
        b"\xa11",
        b"\xcb" + bytes(8),
        b"\x91\x01",
        b"",
        b"\xcd\x01",
        b"\xce\x00\x00\x00",
    ],
)
@pytest.mark.parametrize("behind", [b"", b"\xa5"])
def test_anything_else_is_refused(read_prompt: ReadPrompt, encoded: bytes, behind: bytes) -> None:
    if behind and encoded in (b"", b"\xcd\x01", b"\xce\x00\x00\x00"):
        behind = b""  # these are only cut short
    with pytest.raises(ValueError, match=r"."):
        read_prompt(b"\x01" + encoded + behind, 0, 2, 16, ROOT, b"")


def as_msgspec_reads(encoded: bytes, count: int) -> bytes:
    values = msgspec.msgpack.decode(b"\xdd" + count.to_bytes(4, "big") + encoded, type=list[int])
    return struct.pack(f">{count}I", *values)


@given(st.binary(max_size=30), st.integers(0, 40))
def test_random_bytes_are_read_as_msgspec_reads_them(read_prompt: ReadPrompt, frame: bytes, count: int) -> None:
    """Or refused, exactly where its first `count` values are not tokens."""
    try:
        *_, tokens, end = read_prompt(frame, 0, count, 4, b"", b"")
    except ValueError:
        for end in range(len(frame) + 1):
            with pytest.raises((ValueError, OverflowError, struct.error)):
                as_msgspec_reads(frame[:end], count)
        return
    assert tokens == as_msgspec_reads(frame[:end], count)


def test_a_claimed_count_is_not_allocated(read_prompt: ReadPrompt) -> None:
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"."):
        read_prompt(b"\x01", 0, 2**32 - 1, 16, ROOT, b"")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 10
