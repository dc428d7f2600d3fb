"""Sizes as users write them."""

from __future__ import annotations

import pytest

from lmcache_core import ConfigError
from lmcache_policies.simulate.capacity import capacities, parse_bytes, parse_wishes


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("2%", [20]),
        ("0.5%, 100%", [5, 1000]),
        ("7", [7]),
        ("0.01%,0.02%", [1]),
        ("300 blocks,30", [30, 300]),
        ("1GiB", [512]),
        ("1 gib", [512]),
        ("4MiB", [2]),
        ("10%,100,1%", [10, 100]),
        ("29%", [290]),  # 289.99999999999994 in floating point
    ],
)
def test_capacities_in_blocks(text: str, blocks: list[int]) -> None:
    assert [capacity.blocks for capacity in capacities(parse_wishes(text), 1000, 2 << 20)] == blocks


@pytest.mark.parametrize("text", ["", "%", "5%%", "-3", "5,,6", "12 apples", "120%", "nan"])
def test_what_is_not_a_capacity(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_wishes(text)


@pytest.mark.parametrize("text", ["0%", "0", "0.4", "1MiB"])
def test_a_cache_holds_a_block_at_least(text: str) -> None:
    with pytest.raises(ConfigError, match="is less than one block"):
        capacities(parse_wishes(text), 1000, 2 << 20)


def test_bytes_need_the_size_of_a_block() -> None:
    with pytest.raises(ConfigError, match="--capacity 16GiB needs --block-bytes"):
        capacities(parse_wishes("16GiB"), 1000, None)


@pytest.mark.parametrize(("text", "size"), [("4096", 4096), ("2MiB", 2 << 20), ("1.5 kB", 1500)])
def test_sizes_of_blocks(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["0", "5%", "3 blocks", "many"])
def test_what_is_not_a_size_of_a_block(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        parse_bytes(text)
