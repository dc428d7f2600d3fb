from __future__ import annotations

import functools
import operator
import struct
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_core.model.errors import ProtocolError
from lmcache_core.wire.tokens import TokenRun, decode_tokens, encode_tokens

TOKENS = st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1)), max_size=40)


def big_endian(tokens: list[int]) -> bytes:
    return struct.pack(f">{len(tokens)}I", *tokens)


@given(TOKENS)
def test_round_trip(tokens: list[int]) -> None:
    run = decode_tokens(encode_tokens(tokens), 40)
    assert (run.tokens, run.count) == (big_endian(tokens), len(tokens))
    assert run.encoded.endswith(b"".join(msgspec.msgpack.encode(token) for token in tokens))


@pytest.mark.parametrize("count", [0, 15, 16, 65535, 65536])
def test_every_form_of_the_header(count: int) -> None:
    tokens = [number % 1000 for number in range(count)]
    assert decode_tokens(encode_tokens(tokens), count).tokens == big_endian(tokens)


@pytest.mark.parametrize(
    "raw", [b"\xdc\x00\x02\x07\x08", b"\xdd\x00\x00\x00\x02\x07\x08", b"\x92\xcc\x07\xcf" + bytes(7) + b"\x08"]
)
def test_longer_forms_mean_the_same(raw: bytes) -> None:
    assert decode_tokens(raw, 2).tokens == big_endian([7, 8])


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\x91\xff", "below 0 or above"),
        (b"\x91\xcf\x00\x00\x00\x01\x00\x00\x00\x00", "below 0 or above"),
        (b"\x91\xcf" + b"\xff" * 8, "below 0 or above"),
        (b"\x91\xd3\x80" + bytes(7), "below 0 or above"),
        (b"\x91\xc3", "Expected `int`, got `bool`"),
        (b"\x91\xa11", "Expected `int`, got `str`"),
        (b"\x91\xcb" + bytes(8), "Expected `int`, got `float`"),
        (b"\x91\x91\x01", "Expected `int`, got `array`"),
        (b"\x91", "truncated"),
        (b"\x91\x01\x01", "trailing"),
        (b"\xdc\x00", "truncated"),
        (b"", "expected an array"),
        (b"\x01", "expected an array"),
        (b"\x81\x01\x01", "expected an array"),
        (b"\xc4\x01a", "expected an array"),
        (b"\x95\x01\x02\x03\x04\x05", "5 tokens, more than the 4"),
        (b"\xdd\xff\xff\xff\xff\x01", "4294967295 tokens, more than the 4"),
    ],
)
def test_refuses_what_is_not_an_array_of_tokens(raw: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode_tokens(raw, 4)


def test_a_claimed_count_is_not_allocated() -> None:
    tracemalloc.start()
    with pytest.raises(ProtocolError, match="truncated"):
        decode_tokens(b"\xdd\xff\xff\xff\xff\x01", 2**32)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 10


@given(st.lists(TOKENS, min_size=2, max_size=5), st.booleans())
def test_following_is_the_same_as_decoding(parts: list[list[int]], growing: bool) -> None:
    sequences = (
        [functools.reduce(operator.iadd, parts[: end + 1], []) for end in range(len(parts))] if growing else parts
    )
    for order in (sequences, sequences[::-1]):
        run = decode_tokens(encode_tokens([]), 0)
        for tokens in order:
            raw = encode_tokens(tokens)
            run = run.follow(raw, 1000)
            assert run == decode_tokens(raw, 1000)


def test_following_decodes_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    whole = list(range(1000))
    run = decode_tokens(encode_tokens(whole[:600]), 1000)
    decode = msgspec.msgpack.Decoder(list[int]).decode

    def counting(data: bytes) -> list[int]:
        tokens = decode(data)
        decoded.append(len(tokens))
        return tokens

    monkeypatch.setattr("lmcache_core.wire.tokens._decode_integers", counting)
    assert run.follow(encode_tokens(whole[:600]), 1000) is run
    assert run.follow(encode_tokens(whole[:100]), 1000).tokens == big_endian(whole[:100])
    assert decoded == []
    assert run.follow(encode_tokens(whole), 1000).tokens == big_endian(whole)
    assert decoded == [400]


@pytest.mark.parametrize(
    "raw",
    [b"\x91\x01\x02", b"\x93\x01\x02", b"\x91\x01\x02\x03\x04", b"\x94\x01\x02\x03", b"\x92\x01", b"\x90\x01\x02"],
)
def test_following_believes_no_header(raw: bytes) -> None:
    """Whatever a header claims about bytes that are known already, the answer is that of decoding: a refusal."""
    run = TokenRun(big_endian([1, 2, 3]), b"\x01\x02\x03")
    with pytest.raises(ProtocolError):
        run.follow(raw, 10)


@given(st.binary(max_size=30))
def test_random_bytes_give_tokens_or_a_refusal(raw: bytes) -> None:
    known = TokenRun(big_endian([1, 2]), b"\x01\x02")
    for read in (decode_tokens, known.follow):
        try:
            run = read(raw, 20)
        except ProtocolError:
            continue
        assert run.tokens == big_endian(msgspec.msgpack.decode(raw))
