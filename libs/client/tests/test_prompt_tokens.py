from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_client import prompt_tokens
from lmcache_client.codec import OperationCodec
from lmcache_client.engine_key import EngineKey, TokenSequence, encode_tokens, read_key
from lmcache_client.errors import ProtocolError
from lmcache_client.operations import LOOKUP
from lmcache_client.prompt_tokens import PromptTokens

TOKENS = st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1)), max_size=40)


@given(st.lists(TOKENS, max_size=6))
def test_pieces_are_what_the_whole_is(pieces: list[list[int]]) -> None:
    prompt, whole = PromptTokens(), list[int]()
    for piece in pieces:
        before = prompt.encoded()
        kept = bytes(before)
        prompt.extend(piece)
        whole += piece
        assert bytes(prompt.encoded()) == bytes(encode_tokens(whole))
        assert len(prompt) == len(whole)
        assert bytes(before) == kept, "one that was given out has changed"
        assert prompt.encoded() is prompt.encoded()


@pytest.mark.parametrize("count", [0, 15, 16, 65535, 65536])
def test_headers_of_every_size(count: int) -> None:
    prompt = PromptTokens(range(count))
    assert bytes(prompt.encoded()) == bytes(encode_tokens(range(count)))
    prompt.extend(range(3))
    assert TokenSequence.of(prompt.encoded()).decode() == [*range(count), 0, 1, 2]


def test_a_key_of_it_is_read_by_a_server() -> None:
    prompt = PromptTokens(range(100))
    key = EngineKey("m", 1, None, prompt.encoded(), 0, 96, "r1")
    (frame, _) = OperationCodec(LOOKUP).encode_payload((key, 1))
    read = read_key(frame).token_ids
    assert isinstance(read, TokenSequence)
    assert read.decode() == list(range(100))


@pytest.mark.parametrize("wrong", [2**64, -(2**63) - 1, object(), 1j])
def test_what_cannot_be_encoded_is_refused_and_nothing_appended(wrong: object) -> None:
    prompt = PromptTokens([1, 2])
    with pytest.raises(ProtocolError, match="token ids are plain integers: "):
        prompt.extend([3, wrong])  # type: ignore[list-item]
    assert bytes(prompt.encoded()) == bytes(encode_tokens([1, 2]))


def test_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_tokens, "MAX_TOKENS", 5)
    prompt = PromptTokens(range(5))
    with pytest.raises(ProtocolError, match="a prompt of 6 tokens; a request takes 5"):
        prompt.extend([1])
    assert len(prompt) == 5
