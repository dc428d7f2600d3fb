"""Wrong arguments are an exception, and never a crash or a broken table."""

from __future__ import annotations

from typing import Any

import pytest

native = pytest.importorskip("lmcache_native", reason="lmcache-native is not installed")

HASHES = [bytes([number]) * 32 for number in range(4)]


@pytest.fixture
def table() -> Any:
    made = native.SlotTable()
    made.grow(4)
    made.begin(0, HASHES[:2], [0, 1])
    made.publish([0], 0, False)
    return made


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("acquire", (0, 5)),
        ("acquire", (0, ["text"])),
        ("acquire", (-1, HASHES)),
        ("acquire", (2**32, HASHES)),
        ("hold", ([4],)),
        ("hold", ([-1],)),
        ("hold", ([2**70],)),
        ("hold", ([0.5],)),
        ("hold", ([2],)),
        ("release", ([0],)),
        ("release", ([99],)),
        ("release_from", ([99], [99])),
        ("begin", (0, HASHES[:1], [0])),
        ("begin", (0, HASHES[:2], [2])),
        ("begin", (2**32 - 1, HASHES[2:3], [2])),
        ("begin", (0, [b"short"], [2])),
        ("publish", ([0], 0, False)),
        ("publish", ([3], 0, False)),
        ("hide", ([3],)),
        ("remove", ([3],)),
        ("remove", ([1, 3],)),
        ("state", (4,)),
        ("holds", (4,)),
        ("key", (3,)),
        ("evictable", (5,)),
        ("may_evict", (None,)),
    ],
)
def test_the_table_refuses_and_stays_whole(table: Any, call: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, ValueError, IndexError, KeyError)):
        getattr(table, call)(*arguments)
    states = [table.state(slot) for slot in range(4)]
    assert table.held == sum(1 for state in states if state and state[2])
    assert table.held + table.cached == sum(1 for state in states if state)
    assert table.acquire(0, HASHES[:1]) == [0]


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("insert", ([1], 0)),
        ("insert", ([1], 65_536)),
        ("insert", ([-1], 1)),
        ("insert", ([2**32 - 1], 1)),
        ("insert", (["1"], 1)),
        ("touch", (3,)),
        ("touch", ([None],)),
        ("scan", (0, -1, 5)),
        ("scan", (0, 0, 0)),
    ],
)
def test_the_order_refuses_and_stays_whole(call: str, arguments: tuple[Any, ...]) -> None:
    recency = native.Recency()
    recency.insert([1, 2], 1)
    with pytest.raises((TypeError, ValueError)):
        getattr(recency, call)(*arguments)
    assert recency.scan(0, 0, 10) == ([2, 1], -1)


def test_what_lies_beyond_the_end_is_the_end() -> None:
    recency = native.Recency()
    recency.insert([1, 2], 1)
    assert recency.scan(0, 2**62, 2**62) == ([], -1)
    assert recency.scan(7, 0, 10) == ([], -1)
