"""Who shares a key with whom."""

from __future__ import annotations

import subprocess

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.engine_process import ENGINE_PYTHON
from demo.environment import quiet_environment
from lmcache_vllm.prompt_identity import (
    ADAPTER_TOKENS,
    Adapter,
    Placeholder,
    PromptIdentity,
    adapter_values,
    placeholder_values,
)

CHUNK = 16
TOKENS = st.lists(st.integers(0, 2**17), min_size=3 * CHUNK, max_size=3 * CHUNK)


def ids(identity: PromptIdentity, end: int) -> list[int]:
    decoded: list[int] = msgspec.msgpack.decode(identity.encoded(end))
    return decoded


@given(TOKENS, st.lists(st.integers(0, 3), max_size=6))
def test_a_plain_prompt_is_its_tokens(tokens: list[int], ends: list[int]) -> None:
    identity = PromptIdentity(tokens, CHUNK)
    for end in ends:
        assert ids(identity, end * CHUNK) == tokens[: end * CHUNK]


def test_a_prompt_grows() -> None:
    tokens = list(range(CHUNK + 3))
    identity = PromptIdentity(tokens, CHUNK)
    assert ids(identity, CHUNK) == tokens[:CHUNK]
    tokens[CHUNK:] = range(500, 500 + CHUNK)
    assert ids(identity, 2 * CHUNK) == tokens


def test_long_chunks() -> None:
    tokens = list(range(140_000))
    assert ids(PromptIdentity(tokens, 70_000), 140_000) == tokens


@given(TOKENS, st.integers(0, 2 * CHUNK), st.integers(1, CHUNK))
def test_placeholders_stand_for_their_item(tokens: list[int], offset: int, length: int) -> None:
    identity = PromptIdentity(tokens, CHUNK, [Placeholder("cat", offset, length)])
    expected = [*tokens[:offset], *placeholder_values("cat", length), *tokens[offset + length :]]
    assert ids(identity, 3 * CHUNK) == expected
    assert ids(PromptIdentity(tokens, CHUNK, [Placeholder("dog", offset, length)]), 3 * CHUNK) != expected


ADAPTERS = [None, Adapter("a", "/a"), Adapter("a", "/b"), Adapter("a/", "a"), Adapter("b", "/a")]


@given(TOKENS, TOKENS)
def test_adapters_share_nothing(first: list[int], second: list[int]) -> None:
    """Not with the base model, not with each other, and not between prompts that differ in the mixed tokens alone."""
    chunks = [
        tuple(ids(PromptIdentity(tokens, CHUNK, (), adapter), CHUNK))
        for tokens in {tuple(first), tuple(second)}
        for adapter in ADAPTERS
    ]
    distinct = len({tuple(first[:CHUNK]), tuple(second[:CHUNK])})
    assert len(set(chunks)) == distinct * len(ADAPTERS)


@given(TOKENS)
def test_the_same_adapter_shares(tokens: list[int]) -> None:
    first, again = (PromptIdentity(tokens, CHUNK, (), Adapter("a", "/a")) for _ in range(2))
    assert first.encoded(3 * CHUNK) == again.encoded(3 * CHUNK)
    assert ids(first, 3 * CHUNK)[ADAPTER_TOKENS:] == tokens[ADAPTER_TOKENS:]


def test_an_adapter_names_the_item_in_the_mixed_tokens() -> None:
    chosen = [
        ids(PromptIdentity([1] * CHUNK, CHUNK, [Placeholder(item, 0, 4)], Adapter("a", "/a")), CHUNK)
        for item in ("cat", "dog")
    ]
    assert chosen[0] != chosen[1]


def test_values_are_token_ids() -> None:
    for values in (placeholder_values("cat", 100), adapter_values(Adapter("a", "/a"), range(8))):
        assert all(0 <= value < 2**31 for value in values)


def test_an_adapter_needs_room() -> None:
    with pytest.raises(ValueError, match="--chunk-size"):
        PromptIdentity([1] * 8, 4, (), Adapter("a", "/a"))


_STOCK = """
import json, sys
from lmcache.integration.vllm.utils import apply_mm_hashes_to_token_ids
class Position:
    def __init__(self, offset, length): self.offset, self.length = offset, length
import torch
tokens = torch.arange(48)
changed = apply_mm_hashes_to_token_ids(tokens, ["cat", "a-long-hash" * 9], [Position(3, 20), Position(30, 11)])
print("RESULT", json.dumps([int(token) for token in changed]))
"""


@pytest.mark.engine
def test_the_stock_connector_makes_the_same_of_placeholders() -> None:
    answer = subprocess.run(
        [str(ENGINE_PYTHON), "-c", _STOCK], capture_output=True, text=True, env=quiet_environment(), check=False
    )
    line = next((line for line in answer.stdout.splitlines() if line.startswith("RESULT")), None)
    assert line, answer.stderr
    placeholders = [Placeholder("cat", 3, 20), Placeholder("a-long-hash" * 9, 30, 11)]
    assert ids(PromptIdentity(range(48), CHUNK, placeholders), 48) == msgspec.json.decode(line.removeprefix("RESULT"))
