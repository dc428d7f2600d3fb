"""What a misspelt name is taken for."""

from __future__ import annotations

import pytest

from lmcache_core.model.spelling import mistyped

KNOWN = ("memory", "retain", "trace", "s3", "LRU", "raw_block", "l2_fs")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("memry", "memory"),
        ("memroy", "memory"),
        ("s4", "s3"),
        ("LRV", "LRU"),
        ("rawblok", "raw_block"),
        ("l2_fss", "l2_fs"),
    ],
)
def test_a_slip_is_recognised(word: str, meant: str) -> None:
    assert mistyped(word, KNOWN) == meant


@pytest.mark.parametrize("word", ["tiered", "cache", "fs", "acme", "blocks", "memcached"])
def test_another_name_is_left_alone(word: str) -> None:
    assert mistyped(word, KNOWN) is None
