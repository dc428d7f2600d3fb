"""Prompts cut at separators."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_kv_identity import split_segments

TOKENS = st.lists(st.sampled_from([0, 1, 256, 2**31]), max_size=40)
SEPARATORS = st.lists(st.sampled_from([0, 1, 256, 2**31]), min_size=1, max_size=3)


def slowly(tokens: list[int], separator: list[int]) -> list[range]:
    """Token by token."""
    found, start, at = [], 0, 0
    while at < len(tokens):
        if tokens[at : at + len(separator)] == separator:
            found.append(range(start, at))
            at = start = at + len(separator)
        else:
            at += 1
    return [each for each in [*found, range(start, len(tokens))] if each]


@given(TOKENS, SEPARATORS)
def test_segments_are_what_lies_between_separators(tokens: list[int], separator: list[int]) -> None:
    assert split_segments(tokens, separator) == slowly(tokens, separator)


@given(st.lists(st.lists(st.integers(10, 20), min_size=1, max_size=5), min_size=1, max_size=5), SEPARATORS)
def test_documents_that_were_joined_are_found(documents: list[list[int]], separator: list[int]) -> None:
    joined = list(documents[0])
    for document in documents[1:]:
        joined += separator + document
    assert [[joined[at] for at in each] for each in split_segments(joined, separator)] == documents


def test_bytes_of_two_tokens_do_not_make_a_separator() -> None:
    assert split_segments([1 << 8, 0, 5], [1]) == [range(3)]


def test_an_empty_separator_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        split_segments([1, 2], [])
