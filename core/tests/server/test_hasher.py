"""Chunk hashes: the chains of the protocol, and the same answers whatever is remembered."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import cbor2
import msgspec
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lmcache_client.engine_key import PADDING, TokenSequence, encode_tokens
from lmcache_client.errors import ProtocolError
from lmcache_client.hash_chain import read_prompt
from lmcache_core.kernels.choice import PURE, Kernels, choose_kernels
from lmcache_core.model.keys import HashChain
from lmcache_core.server.chunk_hashing import PromptHasher, open_chain
from lmcache_core.server.prompt_memory import PromptMemory
from lmcache_devkit.fake_clock import FakeClock

CHAINS = (HashChain.BLAKE3, HashChain.SHA256_CBOR)
TAIL = (*range(19), *[PADDING] * 13)
"""Three tokens behind a chunk of 16."""


def hasher(chunk: int = 16, kind: HashChain = HashChain.BLAKE3, seed: str = "0") -> PromptHasher:
    return PromptHasher(open_chain(kind, chunk, seed, PURE), PromptMemory(600.0, FakeClock()))


def fresh(tokens: list[int], end: int, chunk: int = 16, kind: HashChain = HashChain.BLAKE3) -> list[bytes]:
    """Hashes without any memory."""
    return list(hasher(chunk, kind).chunk_hashes(encode_tokens(tokens), end))


@pytest.mark.parametrize(
    ("kind", "chunk", "tokens", "expected"),
    [
        (HashChain.BLAKE3, 16, range(16), "32748aa00c5090e4f0e1f149078a07381f4f618d898c1cbac17e36521c3de48f"),
        (HashChain.BLAKE3, 16, TAIL, "ebe5d4d8d498df643bf4e0d7317ac825fb38e0780ced3bf0a407f1a91dfb7858"),
        (HashChain.SHA256_CBOR, 16, range(16), "d830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c"),
        (HashChain.BLAKE3, 64, range(1, 65), "27adb5fda7372edd60f5246707a24e46941929bbabeedb748feb08d5a4430f24"),
    ],
)
def test_the_protocols_own_vectors(kind: HashChain, chunk: int, tokens: Sequence[int], expected: str) -> None:
    *_, chunk_hash = hasher(chunk, kind).chunk_hashes(encode_tokens(tokens), len(tokens))
    assert chunk_hash.hex() == expected


def test_the_seed_is_part_of_the_cbor_chain_only() -> None:
    raw = encode_tokens(range(16))
    assert hasher(seed="0").chunk_hashes(raw, 16) == hasher(seed="1").chunk_hashes(raw, 16)
    cbor = HashChain.SHA256_CBOR
    assert hasher(kind=cbor, seed="0").chunk_hashes(raw, 16) != hasher(kind=cbor, seed="1").chunk_hashes(raw, 16)


@pytest.mark.parametrize("kind", CHAINS)
def test_only_whole_chunks_have_a_hash(kind: HashChain) -> None:
    assert len(hasher(kind=kind).chunk_hashes(encode_tokens(range(50)), 47)) == 2


@pytest.mark.parametrize("kernels", [PURE, choose_kernels("auto")])
@pytest.mark.parametrize("known", [0, 16, 32, 48])
@pytest.mark.parametrize("there", [1, 15])
def test_the_hash_of_a_tail_is_over_the_tokens_that_are_there(kernels: Kernels, known: int, there: int) -> None:
    """Whatever is remembered of the prompt, and whatever comes behind its tokens in the frame."""
    real = list(range(32 + there))
    padded = [*real, *[PADDING] * (16 - there)]
    whole = fresh(real[:32], 32)
    memory = PromptHasher(open_chain(HashChain.BLAKE3, 16, "0", kernels), PromptMemory(600.0, FakeClock()))
    memory.chunk_hashes(TokenSequence.of(encode_tokens(padded[:known])), known)
    tail = blake3(whole[-1] + b"".join(token.to_bytes(4, "big") for token in real[32:])).digest()
    assert list(memory.chunk_hashes(TokenSequence.of(encode_tokens(padded)), 48)) == [*whole, tail]

    chain = open_chain(HashChain.BLAKE3, 16, "0", kernels)
    encoded = bytes(TokenSequence.of(encode_tokens(padded)).encoded)
    assert chain.extend((), memoryview(encoded + b"\xce" + b"\xff" * 4), 0, 48)[0] == [*whole, tail]


def test_the_hash_of_a_tail_in_the_cbor_chain() -> None:
    whole = fresh(list(range(16)), 16, kind=HashChain.SHA256_CBOR)
    tail = sha256(cbor2.dumps([whole[0], [16, 17, 18], None], canonical=True)).digest()
    padded = [*range(19), *[PADDING] * 13]
    assert fresh(padded, 32, kind=HashChain.SHA256_CBOR) == [*whole, tail]


@pytest.mark.parametrize("kind", CHAINS)
@given(
    requests=st.lists(
        st.tuples(
            st.sampled_from(["", "a", "b"]),
            st.lists(st.sampled_from([0, 1, 300, 70000]), max_size=12),
            st.integers(0, 12),
        ),
        max_size=12,
    )
)
def test_what_is_remembered_changes_no_hash(kind: HashChain, requests: list[tuple[str, list[int], int]]) -> None:
    """Tiny chunks of few tokens: prompts repeat, grow, shrink and part in the middle all the time."""
    memory = hasher(2, kind)
    for salt, tokens, end in requests:
        end = min(end, len(tokens))
        sequence = TokenSequence.of(encode_tokens(tokens), salt)
        assert list(memory.chunk_hashes(sequence, end)) == fresh(tokens, end, 2, kind)


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("bad", [b"\xff", b"\xcf" + b"\xff" * 8, b"\xc0", b"\xa11", b"\x91\x01", b"\xcb" + bytes(8)])
def test_what_is_not_a_token_is_refused(kind: HashChain, known: bool, bad: bytes) -> None:
    memory = hasher(4, kind)
    if known:
        memory.chunk_hashes(TokenSequence.of(encode_tokens([1] * 4)), 4)
    with pytest.raises(ProtocolError, match=r"token_ids: ."):
        memory.chunk_hashes(TokenSequence.of(b"\x96" + b"\x01" * 5 + bad), 4)


@pytest.mark.parametrize("raw", [b"\x91\x01\x02", b"\x93\x01\x02", b"\x94\x01\x01\x01", b"\x90\x01\x01"])
def test_no_header_is_believed(raw: bytes) -> None:
    memory = hasher(1)
    memory.chunk_hashes(TokenSequence.of(encode_tokens([1, 1, 1, 2])), 4)
    with pytest.raises(ProtocolError):
        memory.chunk_hashes(TokenSequence.of(raw), 0)
    with pytest.raises(ProtocolError):
        memory.chunk_hashes(msgspec.Raw(raw), 0)


@pytest.mark.parametrize("end", [17, -1])
def test_an_end_beyond_the_tokens_is_refused(end: int) -> None:
    with pytest.raises(ProtocolError, match=f"end is {end}, but there are 16"):
        hasher().chunk_hashes(encode_tokens(range(16)), end)


def counting_hasher() -> tuple[PromptHasher, list[int]]:
    """A hasher, and the numbers of tokens that it reads."""
    read: list[int] = []

    def counting(
        frame: bytes | memoryview, offset: int, count: int, chunk_tokens: int, previous: bytes, carry: bytes
    ) -> tuple[list[bytes], list[int], bytes, int]:
        read.append(count)
        return read_prompt(frame, offset, count, chunk_tokens, previous, carry)

    chain = open_chain(HashChain.BLAKE3, 16, "", replace(PURE, read_prompt=counting))
    return PromptHasher(chain, PromptMemory(600.0, FakeClock())), read


def test_only_what_is_new_is_read() -> None:
    memory, read = counting_hasher()
    tokens = list(range(1000))
    others = [*tokens[:600], *range(400)]
    for sequence in (tokens[:805], tokens[:805], tokens[:300], tokens, tokens, others, others, tokens):
        memory.chunk_hashes(TokenSequence.of(encode_tokens(sequence), "a"), len(sequence))
    assert read == [805, 1000 - 800, 1000 - 592]
    memory.chunk_hashes(TokenSequence.of(encode_tokens(tokens), "a"), 1000)
    assert len(read) == 3


def test_no_tenant_learns_from_tokens_that_name_no_tenant() -> None:
    """A client that times a lookup could find out what another tenant's prompt begins with."""
    memory, read = counting_hasher()
    tokens = encode_tokens(range(1000))
    for _ in range(2):
        memory.chunk_hashes(tokens, 1000)
    memory.chunk_hashes(TokenSequence.of(tokens), 1000)
    memory.chunk_hashes(tokens, 1000)
    assert read == [1000] * 4


def test_token_ids_of_any_kind_are_taken() -> None:
    class Numbers:
        count = 20

        def decode(self) -> list[int]:
            return list(range(20))

    assert list(hasher().chunk_hashes(Numbers(), 20)) == fresh(list(range(20)), 20)
