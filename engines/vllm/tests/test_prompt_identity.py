"""Who shares a key with whom."""

from __future__ import annotations

import itertools
import subprocess

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demo.engine_process import ENGINE_PYTHON
from demo.environment import quiet_environment
from lmcache_client.engine_key import PADDING
from lmcache_vllm.prompt_identity import ITEM_TOKENS, Placeholder, PromptIdentity, placeholder_values

CHUNK = 16
TOKENS = st.lists(st.integers(0, 2**17), min_size=3 * CHUNK, max_size=3 * CHUNK)


def ids(identity: PromptIdentity, end: int) -> list[int]:
    decoded: list[int] = msgspec.msgpack.decode(identity.encoded(end))
    return decoded


@settings(deadline=None)
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


@settings(deadline=None)
@given(TOKENS, st.integers(0, 3 * CHUNK), st.integers(0, 3 * CHUNK), st.data())
def test_a_tail_has_the_name_of_its_own_tokens_alone(
    tokens: list[int], end: int, other: int, data: st.DataObject
) -> None:
    """And so has each chunk before it, whatever else is looked up under the same beginning."""
    identity = PromptIdentity(tokens, CHUNK)
    padded = [*tokens[:end], *[PADDING] * (-end % CHUNK)]
    assert ids(identity, end) == padded
    changed = [*tokens[:other], *data.draw(st.lists(st.integers(0, 2**17), max_size=3 * CHUNK))]
    found = ids(PromptIdentity(changed, CHUNK), len(changed))
    alike = 0
    while alike < min(len(padded), len(found)) and padded[alike : alike + CHUNK] == found[alike : alike + CHUNK]:
        alike += CHUNK
    shared = min(alike, end)
    assert tokens[:shared] == changed[:shared]
    assert alike <= end or len(changed) == end


@settings(deadline=None)
@given(st.integers(0, 4 * CHUNK), st.integers(0, 4 * CHUNK), st.integers(1, CHUNK), st.sampled_from([4, 8]))
def test_a_tail_says_which_item_is_in_it(end: int, offset: int, length: int, block_tokens: int) -> None:
    cat, dog = (PromptIdentity([1] * 5 * CHUNK, CHUNK, [Placeholder(name, offset, length)]) for name in ("cat", "dog"))
    tail = cat.tail_end(end, block_tokens)
    assert tail == dog.tail_end(end, block_tokens)
    assert tail in (end // CHUNK * CHUNK, end // block_tokens * block_tokens)
    if offset < tail and not cat.variant:
        differing = [a != b for a, b in zip(ids(cat, tail), ids(dog, tail), strict=True)]
        assert sum(differing) >= ITEM_TOKENS


def test_long_chunks() -> None:
    tokens = list(range(140_000))
    assert ids(PromptIdentity(tokens, 70_000), 140_000) == tokens


@settings(deadline=None)
@given(TOKENS, st.integers(0, 2 * CHUNK), st.integers(1, CHUNK))
def test_placeholders_mean_their_item(tokens: list[int], offset: int, length: int) -> None:
    identity = PromptIdentity(tokens, CHUNK, [Placeholder("cat", offset, length)])
    expected = [*tokens[:offset], *placeholder_values("cat", length), *tokens[offset + length :]]
    assert ids(identity, 3 * CHUNK) == expected
    assert ids(PromptIdentity(tokens, CHUNK, [Placeholder("dog", offset, length)]), 3 * CHUNK) != expected


@settings(deadline=None)
@given(TOKENS)
def test_an_adapter_is_part_of_the_model_name_and_not_of_the_tokens(tokens: list[int]) -> None:
    base, some, again, other = (PromptIdentity(tokens, CHUNK, (), adapter) for adapter in ("", "a", "a", "b"))
    assert base.variant == ""
    assert some.variant == again.variant
    assert len({base.variant, some.variant, other.variant}) == 3
    assert base.encoded(3 * CHUNK) == some.encoded(3 * CHUNK) == other.encoded(3 * CHUNK)


@settings(deadline=None)
@given(st.integers(0, 3 * CHUNK), st.integers(1, CHUNK))
def test_an_item_of_few_tokens_is_part_of_the_model_name(offset: int, length: int) -> None:
    """In the chunk in which it begins: a later one differs by that."""
    tokens = [1] * 4 * CHUNK
    cat, dog = (PromptIdentity(tokens, CHUNK, [Placeholder(name, offset, length)]) for name in ("cat", "dog"))
    if min(length, CHUNK - offset % CHUNK) < ITEM_TOKENS:
        assert "" != cat.variant != dog.variant != ""
    else:
        assert cat.variant == dog.variant == ""
        chunk = offset // CHUNK * CHUNK
        differing = [a != b for a, b in zip(ids(cat, 4 * CHUNK), ids(dog, 4 * CHUNK), strict=True)]
        assert sum(differing[chunk : chunk + CHUNK]) >= ITEM_TOKENS


def test_two_items_whose_31_bits_are_alike_are_distinguished() -> None:
    """Found by trying 74,533 identifiers: as many images behind one system prompt share a key by chance."""
    seen: dict[int, str] = {}
    for number in itertools.count():
        value = placeholder_values(f"item {number}", 1)[0]
        if value in seen:
            break
        seen[value] = f"item {number}"
    some, other = (
        PromptIdentity([1] * CHUNK, CHUNK, [Placeholder(name, 3, 1)]) for name in (seen[value], f"item {number}")
    )
    assert some.encoded(CHUNK) == other.encoded(CHUNK)
    assert some.variant != other.variant


def test_the_order_of_items_counts() -> None:
    items = [Placeholder("cat", 0, 1), Placeholder("dog", 1, 1)]
    swapped = [Placeholder("dog", 0, 1), Placeholder("cat", 1, 1)]
    some, other = (PromptIdentity([1] * CHUNK, CHUNK, placed) for placed in (items, swapped))
    assert some.variant != other.variant


def test_values_are_token_ids() -> None:
    assert all(0 <= value < 2**31 for value in placeholder_values("cat", 100))


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
