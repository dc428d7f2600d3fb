"""Cells, how many objects they need, and the numbers on a command line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_client.errors import ConfigError
from lmcache_tools.bench.plan import Cell, Plan, slot_bytes, spaced
from lmcache_tools.bench.sizes import list_of, number_in, size_of

MIB = 1 << 20


def plan(**changed: object) -> Plan:
    given = {"sizes": (MIB,), "depths": (1,), "shares": (0, 100), "pass_bytes": 8 * MIB, "rounds": 2, **changed}
    return Plan(**given)  # type: ignore[arg-type]


def test_a_pass_has_as_many_objects_as_its_bytes_and_never_fewer_than_its_depth() -> None:
    assert plan().objects(MIB, 1) == 8
    assert plan().objects(MIB, 16) == 16
    assert plan().objects(32 * MIB, 1) == 2


def test_memory_and_store_hold_the_largest_set() -> None:
    wide = plan(sizes=(MIB, 4 * MIB), depths=(1, 4))
    assert wide.memory_bytes == wide.stored_bytes == 16 * MIB
    assert plan(sizes=(MIB + 1,)).memory_bytes == 7 * (MIB + 4096)
    assert plan(shares=(0, 75, 100)).stored_bytes == (8 + 2) * MIB


def test_rounds_are_counted_with_those_that_warm_up() -> None:
    assert plan(sizes=(MIB, 2 * MIB), depths=(1, 2, 4), rounds=5).rounds_at_most == 2 * 3 * 6


def test_a_cell_says_what_it_measures() -> None:
    assert [Cell(MIB, 1, share).what for share in (0, 70, 100)] == ["store", "70 % loads", "load"]


@given(st.integers(1, 2**40))
def test_slots_are_whole_pages(size: int) -> None:
    assert slot_bytes(size) % 4096 == 0
    assert 0 <= slot_bytes(size) - size < 4096


@given(st.integers(1, 300), st.integers(0, 100))
def test_shares_are_spread_evenly(count: int, percent: int) -> None:
    answers = spaced(count, percent)
    assert len(answers) == count
    for end in range(count + 1):
        assert sum(answers[:end]) == end * percent // 100


def test_sizes_and_numbers_as_people_write_them() -> None:
    assert list_of("--sizes", size_of, "4MiB, 4194304,1.5 kb") == (4 * MIB, 1500)
    assert list_of("--depths", number_in(1, 8), "8,1,8") == (8, 1)


@pytest.mark.parametrize("text", ["", "0", "-1", "4 fish", "MiB", "1e9", "nan"])
def test_what_is_not_a_size_is_said_with_its_flag(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--sizes: .*not a size"):
        list_of("--sizes", size_of, text)


@pytest.mark.parametrize("text", ["0", "9", "x", "1.0", "\u0663", ""])
def test_numbers_have_limits(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--depths: .*from 1 to 8"):
        list_of("--depths", number_in(1, 8), text)
