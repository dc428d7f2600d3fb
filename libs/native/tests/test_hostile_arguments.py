"""Wrong arguments are an exception, and never a crash or a broken table."""

from __future__ import annotations

from array import array
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


KEY = bytes(32)
CHUNK = array("I", range(4))


@pytest.mark.parametrize(
    "arguments",
    [
        (0, 8, 5, KEY),
        (2**40, 8, 5, KEY),
        (4, 0, 5, KEY),
        (4, 2**40, 5, KEY),
        (4, -1, 5, KEY),
        (4, 8, 2**61 - 1, KEY),
        (4, 8, -1, KEY),
        (4, 8, 5, b"short"),
        (4, 8, 5, None),
    ],
)
def test_a_table_of_chunks_is_not_made_of_what_cannot_be(arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, ValueError)):
        native.ChunkTable(*arguments)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("add", (0, 0, CHUNK, HASHES[0], 0, 0)),
        ("add", (2**16, 0, CHUNK, HASHES[0], 0, 0)),
        ("add", (1, 2**64, CHUNK, HASHES[0], 0, 0)),
        ("add", (1, 0, CHUNK[:3], HASHES[0], 0, 0)),
        ("add", (1, 0, [*CHUNK, 4], HASHES[0], 0, 0)),
        ("add", (1, 0, [1, 2, 3, 2**32], HASHES[0], 0, 0)),
        ("add", (1, 0, [1, 2, 3, -1], HASHES[0], 0, 0)),
        ("add", (1, 0, [1, 2, 3, 4.0], HASHES[0], 0, 0)),
        ("add", (1, 0, array("Q", range(4)), HASHES[0], 0, 0)),
        ("add", (1, 0, memoryview(array("I", range(8)))[::2], HASHES[0], 0, 0)),
        ("add", (1, 0, CHUNK, b"short", 0, 0)),
        ("add", (1, 0, CHUNK, "text", 0, 0)),
        ("add", (1, 0, CHUNK, HASHES[0], 2**32, 0)),
        ("add", (1, 0, CHUNK, HASHES[0], 0, 2**64)),
        ("match", (1, 0, CHUNK, 0)),
        ("match", (1, 0, CHUNK, -1)),
        ("match", (1, 0, "text", 1)),
        ("match", (1, 0, None, 1)),
        ("note", (2**32, HASHES[0], True)),
        ("note", (1, b"short", True)),
    ],
)
def test_a_table_of_chunks_refuses_and_stays_whole(call: str, arguments: tuple[Any, ...]) -> None:
    table = native.ChunkTable(4, 8, 5, KEY)
    assert table.add(1, 0, CHUNK, HASHES[1], 7, 9) == 0
    with pytest.raises((TypeError, ValueError, OverflowError, BufferError)):
        getattr(table, call)(*arguments)
    assert len(table) == 1
    for entry in (0, 2, 8, 9, 2**32 - 1):
        table.note(entry, HASHES[1], False)
    assert table.match(1, 0, [0, 0, *CHUNK], 2**62) == []
    assert table.match(1, 0, [0, 0, *CHUNK], 1) == [(2, HASHES[1], 7, 9, 1, False)]
