"""Space is never given twice, comes back whole, and is given in the order of requests."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_serde.chain.scratch import PAGE_BYTES, Extent, ScratchAllocator, ScratchQueue, scratch_region

PAGES = 32


@given(st.lists(st.tuples(st.sampled_from(["take", "give", "shrink"]), st.integers(0, 10 * PAGE_BYTES)), max_size=60))
def test_extents_never_overlap_and_all_of_the_room_comes_back(steps: list[tuple[str, int]]) -> None:
    allocator, out = ScratchAllocator(PAGE_BYTES, PAGES * PAGE_BYTES), list[Extent]()
    for step, number in steps:
        if step == "take":
            extent = allocator.take(number + 1)
            if extent is not None:
                assert extent.length >= number + 1
                assert PAGE_BYTES <= extent.offset < extent.end <= (PAGES + 1) * PAGE_BYTES
                assert all(extent.end <= other.offset or other.end <= extent.offset for other in out)
                out.append(extent)
            else:
                assert out, "an empty allocator has place for this"
        elif out:
            extent = out.pop(number % len(out))
            kept = extent.length // PAGE_BYTES // 2 * PAGE_BYTES if step == "shrink" else 0
            allocator.give(Extent(extent.offset + kept, extent.length - kept))
            if kept:
                out.append(Extent(extent.offset, kept))
        assert allocator.free_bytes == PAGES * PAGE_BYTES - sum(extent.length for extent in out)
    for extent in out:
        allocator.give(extent)
    assert allocator.take(PAGES * PAGE_BYTES) == Extent(PAGE_BYTES, PAGES * PAGE_BYTES), (
        "its parts do not grow together"
    )


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_giving_twice_is_a_fault(offset: int) -> None:
    allocator = ScratchAllocator(0, 4 * PAGE_BYTES)
    extent = allocator.take(3 * PAGE_BYTES)
    assert extent is not None
    allocator.give(extent)
    with pytest.raises(AssertionError, match="is free already"):
        allocator.give(Extent(offset * PAGE_BYTES, PAGE_BYTES))


def scratch_queue(pages: int, started: list[tuple[Any, Extent]], works: bool = True) -> ScratchQueue[str]:
    def start(work: str, extent: Extent) -> bool:
        started.append((work, extent))
        return works

    return ScratchQueue[str](ScratchAllocator(0, pages * PAGE_BYTES), start)


def test_a_large_one_is_not_passed_by_small_ones() -> None:
    started: list[tuple[Any, Extent]] = []
    work = scratch_queue(4, started)
    for name, pages in (("a", 3), ("large", 4), ("small", 1)):
        assert work.add(name, pages * PAGE_BYTES)
    assert [name for name, _ in started] == ["a"]
    work.give(started[0][1])
    assert [name for name, _ in started] == ["a", "large"]
    kept = work.shrink(started[1][1], 1)
    assert kept == Extent(0, PAGE_BYTES)
    assert [name for name, _ in started] == ["a", "large", "small"]
    work.give(kept)
    assert not work.is_idle
    work.give(started[2][1])
    assert work.is_idle


def test_the_room_of_what_came_to_nothing_is_free_again() -> None:
    started: list[tuple[Any, Extent]] = []
    work = scratch_queue(2, started, works=False)
    for name in "abcd":
        assert work.add(name, 2 * PAGE_BYTES)
    assert [name for name, _ in started] == list("abcd")
    assert work.is_idle


def test_a_closed_queue_starts_nothing_more() -> None:
    started: list[tuple[Any, Extent]] = []
    work = scratch_queue(1, started)
    assert work.add("a", PAGE_BYTES)
    assert work.add("b", PAGE_BYTES)
    assert work.close() == ["b"]
    assert not work.add("c", PAGE_BYTES)
    work.give(started[0][1])
    assert [name for name, _ in started] == ["a"]
    assert work.is_idle


def test_many_threads_share_a_room() -> None:
    """Every piece of work starts once, and no two of them have one page at a time."""
    busy, starts, clashes = set[int](), list[int](), list[int]()
    guard, over = threading.Lock(), threading.Semaphore(0)
    threads: list[threading.Thread] = []

    def start(number: int, extent: Extent) -> bool:
        pages = set(range(extent.offset, extent.end, PAGE_BYTES))
        with guard:
            starts.append(number)
            clashes.extend(pages & busy)
            busy.update(pages)

        def end() -> None:
            with guard:
                busy.difference_update(pages)
            work.give(extent)
            over.release()

        thread = threading.Thread(target=end)
        threads.append(thread)
        thread.start()
        return True

    work = ScratchQueue[int](ScratchAllocator(0, 7 * PAGE_BYTES), start)
    for number in range(120):
        assert work.add(number, (number % 7 + 1) * PAGE_BYTES)
    for _ in range(120):
        assert over.acquire(timeout=20)
    for thread in threads:
        thread.join()
    assert sorted(starts) == list(range(120))
    assert clashes == []
    assert work.is_idle


def test_a_region_is_whole_pages_of_zeros() -> None:
    region = scratch_region(PAGE_BYTES + 1)
    assert region.length == len(region.view) == 2 * PAGE_BYTES
    assert region.address % PAGE_BYTES == 0
    assert bytes(region.view) == bytes(2 * PAGE_BYTES)
