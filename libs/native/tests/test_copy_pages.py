"""Pages and chunk objects: every byte goes where the slow reference puts it, and no other changes."""

from __future__ import annotations

import sys
import threading
import time
from array import array
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.native.tests.paged_memory import Job, Shape

native = pytest.importorskip("lmcache_native", reason="lmcache-native is not installed")

DIRECTIONS = (native.GATHER, native.SCATTER)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Token-major, head-major, keys between values, and with gaps of any size."""
    kv_axis, layers = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    slots, heads = draw(st.sampled_from([1, 2, 3, 8])), draw(st.integers(1, 4))
    head_bytes = draw(st.sampled_from([1, 3, 32, 64, 128, 132, 256, 16_384]))
    if draw(st.booleans()):
        head_stride = head_bytes + draw(st.sampled_from([0, 1, 64, head_bytes]))
        slot_stride = heads * head_stride + draw(st.sampled_from([0, 5, 64]))
        extent = slots * slot_stride
    else:
        slot_stride = head_bytes + draw(st.sampled_from([0, 1, 64, head_bytes]))
        head_stride = slots * slot_stride + draw(st.sampled_from([0, 5, 64]))
        extent = heads * head_stride
    gap = draw(st.sampled_from([0, 0, 7, 64]))
    return Shape(kv_axis, layers, slots, heads, head_bytes, extent + gap, slot_stride, head_stride)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    shape = draw(shapes())
    objects, per_object = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    count = objects * per_object
    ids = draw(st.permutations(range(count + 2)))[:count]
    if draw(st.booleans()):
        ids = sorted(ids)  # neighbours, which go in one run
    absent = draw(st.sets(st.integers(0, max(count - 1, 0)), max_size=2))
    blocks = [-1 if place in absent else block for place, block in enumerate(ids)]
    first = draw(st.integers(0, shape.layers))
    skip = draw(st.integers(0, per_object * shape.slots_per_block)) if objects else 0
    return Job(
        shape,
        blocks,
        objects,
        (first, draw(st.integers(first, shape.layers))),
        skip_slots=skip,
        threads=draw(st.integers(1, 3)),
        offset=draw(st.sampled_from([0, 0, 1, 32])),
        page_count=count + 2,
    )


@settings(deadline=None)
@given(jobs(), st.sampled_from(DIRECTIONS))
def test_every_copy_is_the_slow_one(job: Job, direction: int) -> None:
    pages, chunks, moved = job.expected(direction)
    assert native.copy_pages(*job.arguments(direction)) == moved
    assert job.found() == (pages, chunks)


SHAPES = {
    "token major": Shape.token_major(2, 4, 16, 8, 256),
    "token major, fused": Shape.token_major(1, 8, 16, 8, 256),
    "token major, gaps": Shape.token_major(2, 4, 16, 8, 256, gap=32_768),
    "head major": Shape.head_major(2, 4, 16, 8, 256),
    "head major, rows of odd size": Shape.head_major(1, 8, 16, 8, 264),
    "one head": Shape.token_major(1, 8, 64, 1, 1152),
}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("offset", [0, 24])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.slow
def test_large_copies_stream_and_share_the_work(name: str, offset: int, threads: int, direction: int) -> None:
    blocks = [*range(7, 23), *range(40, 23, -1), *range(2, -1, -1), -1, 50, 51, 52, 53]
    job = Job(SHAPES[name], blocks[:40], 2, (0, SHAPES[name].layers), 5, threads=threads, offset=offset, page_count=60)
    pages, chunks, moved = job.expected(direction)
    assert native.copy_pages(*job.arguments(direction)) == moved
    assert job.found() == (pages, chunks)


def test_there_and_back() -> None:
    shape = Shape.head_major(2, 3, 8, 4, 128)
    job = Job(shape, [4, 1, 3, 0], 2, (0, 3), page_count=5)
    before = job.found()[0]
    native.copy_pages(*job.arguments(native.GATHER))
    for page in job.pages:
        for block in job.blocks:
            page.data[block * shape.block_stride : block * shape.block_stride + shape.block_extent] = bytes(
                shape.block_extent
            )
    native.copy_pages(*job.arguments(native.SCATTER))
    assert job.found()[0] == before


def test_the_interpreter_runs_meanwhile() -> None:
    """No thread here releases the GIL by itself: the count grows only while a copy is without it."""
    job = Job(Shape.token_major(2, 4, 16, 8, 256), list(range(32)), 2, (0, 4))
    arguments = job.arguments(native.GATHER)
    counted, ended = count(), threading.Event()
    last = 0

    def work() -> None:
        nonlocal last
        while not ended.is_set():
            last = next(counted)
            time.sleep(0)  # releases the GIL

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=work)
    sys.setswitchinterval(60)
    try:
        thread.start()
        progress: list[int] = []
        while not any(progress) and len(progress) < 5000:
            before = last
            native.copy_pages(*arguments)
            progress.append(last - before)
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        thread.join()
    assert any(progress)


def test_calls_at_the_same_time_do_not_mix() -> None:
    jobs = [
        Job(shape, list(range(31, -1, -1)), 2, (0, shape.layers), threads=threads)
        for threads in (1, 2)
        for shape in SHAPES.values()
    ]
    expected = [job.expected(native.GATHER) for job in jobs]

    def repeat(job: Job) -> int:
        return sum(native.copy_pages(*job.arguments(native.GATHER)) for _ in range(5))

    with ThreadPoolExecutor(len(jobs)) as pool:
        moved = list(pool.map(repeat, jobs))
    assert moved == [5 * nbytes for _, _, nbytes in expected]
    assert [job.found() for job in jobs] == [(pages, chunks) for pages, chunks, _ in expected]


@pytest.mark.parametrize("kind", ["array", "bytes", "memoryview"])
def test_ids_may_come_in_any_contiguous_buffer(kind: str) -> None:
    job = Job(Shape.token_major(1, 2, 4, 2, 64), [3, 0], 1, (0, 2))
    arguments = job.arguments(native.GATHER)
    ids: array[int] = arguments[2]
    if kind == "bytes":
        arguments[2] = memoryview(ids.tobytes()).cast("q")
    elif kind == "memoryview":
        arguments[2] = memoryview(ids)
    pages, chunks, moved = job.expected(native.GATHER)
    assert native.copy_pages(*arguments) == moved
    assert job.found() == (pages, chunks)
