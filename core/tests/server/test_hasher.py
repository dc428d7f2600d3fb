"""The chains of the engine protocol, and the memory of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_core.model.errors import ProtocolError
from lmcache_core.model.keys import HashChain
from lmcache_core.server.hasher import SESSION_BYTES_MAX, Chain, SessionHasher
from lmcache_core.testing.fake_clock import FakeClock
from lmcache_core.wire.tokens import decode_tokens, encode_tokens


def hasher(chunk: int = 16, chain: HashChain = HashChain.BLAKE3, seed: str = "0") -> SessionHasher:
    return SessionHasher(Chain(chain, chunk, seed), 600.0, FakeClock())


def fresh(tokens: list[int], chunk: int = 16) -> list[bytes]:
    """Hashes without any memory."""
    return Chain(HashChain.BLAKE3, chunk, "0").extend(
        [], decode_tokens(encode_tokens(tokens), 1 << 20).tokens, len(tokens) // chunk
    )


@pytest.mark.parametrize(
    ("chain", "chunk", "tokens", "expected"),
    [
        (HashChain.BLAKE3, 16, range(16), "32748aa00c5090e4f0e1f149078a07381f4f618d898c1cbac17e36521c3de48f"),
        (HashChain.SHA256_CBOR, 16, range(16), "d830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c"),
        (HashChain.BLAKE3, 64, range(1, 65), "27adb5fda7372edd60f5246707a24e46941929bbabeedb748feb08d5a4430f24"),
    ],
)
def test_the_protocols_own_vectors(chain: HashChain, chunk: int, tokens: range, expected: str) -> None:
    (chunk_hash,) = hasher(chunk, chain).chunk_hashes("r", encode_tokens(tokens), chunk)
    assert chunk_hash.hex() == expected


def test_the_seed_is_part_of_the_cbor_chain_only() -> None:
    raw = encode_tokens(range(16))
    assert hasher(seed="0").chunk_hashes("r", raw, 16) == hasher(seed="1").chunk_hashes("r", raw, 16)
    cbor = HashChain.SHA256_CBOR
    assert hasher(chain=cbor, seed="0").chunk_hashes("r", raw, 16) != hasher(chain=cbor, seed="1").chunk_hashes(
        "r", raw, 16
    )


def test_only_whole_chunks_have_a_hash() -> None:
    assert len(hasher().chunk_hashes("r", encode_tokens(range(50)), 47)) == 2


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 3), max_size=12), st.integers(0, 12)), max_size=12
    )
)
def test_a_reused_request_id_never_gets_another_prompts_hashes(requests: list[tuple[str, list[int], int]]) -> None:
    """Engines number their requests from 0, so one id comes with many prompts; tiny chunks make them overlap often."""
    memory = hasher(chunk=2)
    for request_id, tokens, end in requests:
        end = min(end, len(tokens))
        expected = fresh(tokens, 2)[: end // 2]
        assert list(memory.chunk_hashes(request_id, encode_tokens(tokens), end)) == expected


def test_a_grown_prompt_keeps_what_is_known() -> None:
    memory = hasher()
    tokens = list(range(160))
    first = memory.chunk_hashes("r", encode_tokens(tokens), 160)
    longer = memory.chunk_hashes("r", encode_tokens([*tokens, *range(16)]), 176)
    assert list(longer[:10]) == list(first)
    assert list(longer) == fresh([*tokens, *range(16)])


@pytest.mark.parametrize("end", [17, -1])
def test_an_end_beyond_the_tokens_is_refused(end: int) -> None:
    with pytest.raises(ProtocolError, match=f"end is {end}, but there are 16"):
        hasher().chunk_hashes("r", encode_tokens(range(16)), end)


def test_idle_requests_are_forgotten() -> None:
    clock = FakeClock()
    memory = SessionHasher(Chain(HashChain.BLAKE3, 16, "0"), 600.0, clock)
    memory.chunk_hashes("old", encode_tokens(range(16)), 16)
    clock.advance(400)
    memory.chunk_hashes("new", encode_tokens(range(16)), 16)
    clock.advance(300)
    memory.expire()
    assert len(memory) == 1
    memory.end_session("new")
    memory.end_session("new")
    assert len(memory) == 0


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_core.server.hasher.SESSION_BYTES_MAX", SESSION_BYTES_MAX // 1024)
    memory = hasher()
    raw = encode_tokens(range(4096))
    for number in range(100):
        memory.chunk_hashes(str(number), raw, 4096)
    assert 1 <= len(memory) < 10
