from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_client.engine_key import MAX_TOKENS, TokenSequence, array_header, encode_header, encode_tokens
from lmcache_client.errors import ProtocolError

TOKENS = st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1)), max_size=40)


@given(TOKENS)
def test_round_trip(tokens: list[int]) -> None:
    sequence = TokenSequence.of(encode_tokens(tokens))
    assert (sequence.count, sequence.decode()) == (len(tokens), tokens)
    assert bytes(sequence.encoded) == b"".join(msgspec.msgpack.encode(token) for token in tokens)
    assert sequence == encode_tokens(tokens)
    assert sequence == TokenSequence.of(sequence.array())
    assert hash(sequence) == hash(TokenSequence.of(sequence.array()))
    assert sequence != TokenSequence.of(encode_tokens([*tokens, 1]))


@pytest.mark.parametrize("count", [0, 15, 16, 65535, 65536])
def test_every_form_of_the_header(count: int) -> None:
    encoded = encode_tokens([1] * count)
    header = encode_header(count)
    assert bytes(encoded).startswith(header)
    assert array_header(memoryview(encoded)) == (count, len(header))


@pytest.mark.parametrize("raw", [b"\xdc\x00\x02\x07\x08", b"\xdd\x00\x00\x00\x02\x07\x08"])
def test_longer_headers_mean_the_same(raw: bytes) -> None:
    assert TokenSequence.of(raw) == TokenSequence.of(b"\x92\x07\x08")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\x91", "truncated"),
        (b"\x91\x01\x01", "trailing"),
        (b"\xdc\x00", "truncated"),
        (b"", "expected an array"),
        (b"\x01", "expected an array"),
        (b"\x81\x01\x01", "expected an array"),
        (b"\xc4\x01a", "expected an array"),
        (b"\x93\x01\x02", "truncated"),
        (b"\xdd\x00\xff\xff\xff\x01", "truncated"),
        (b"\xdd\xff\xff\xff\xff\x01", f"4294967295 tokens, more than the {MAX_TOKENS}"),
    ],
)
def test_refuses_what_is_not_an_array(raw: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        TokenSequence.of(raw)


def test_what_is_not_a_number_is_refused_when_it_is_decoded() -> None:
    with pytest.raises(ProtocolError, match="Expected `int`, got `bool`"):
        TokenSequence.of(b"\x91\xc3").decode()
