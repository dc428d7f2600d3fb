"""Bytes come and go whole, and none once the borrowing has ended."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_core import BorrowedBuffer
from lmcache_devkit.borrowed_memory import UNWRITTEN, BorrowedMemory
from lmcache_l2_s3.borrowed_copy import BorrowedSink, BorrowedSource, BorrowEndedError, MisfitError, PageSink, length_of

MEMORY = BorrowedMemory(2**20)
WHOLE = MEMORY.lend(5000)
BEHIND = MEMORY.lend(4096)


def headers(length: int) -> list[tuple[str, str]]:
    return [("ETag", '"x"'), ("Content-Length", str(length))]


@given(st.integers(0, 2**32).map(lambda seed: Random(seed).randbytes(5000)), st.lists(st.integers(0, 5000), max_size=5))
def test_what_comes_in_parts_lies_in_the_buffer_and_goes_out_again(data: bytes, cuts: list[int]) -> None:
    ends = sorted({*cuts, 0, 5000})
    sink = BorrowedSink(WHOLE, 0)
    sink.on_headers(200, headers(5000))
    for start, end in itertools.pairwise(ends):
        assert not sink.is_whole
        sink.on_body(data[start:end], start)
    assert sink.is_whole
    assert WHOLE.view == data
    assert BEHIND.view == UNWRITTEN * 4096
    source = BorrowedSource(WHOLE)
    parts = bytearray()
    for start, end in itertools.pairwise(ends):
        part = bytearray(end - start)
        assert source.readinto(memoryview(part)) == end - start
        parts += part
    assert parts == data
    assert source.readinto(memoryview(bytearray(10))) == 0
    assert source.seek(-1000, 2) == 4000
    assert source.read() == data[4000:]
    assert source.seek(0) == 0
    assert source.read(7) == data[:7]


@pytest.mark.parametrize(
    ("length", "fits"), [(0, False), (99, False), (100, True), (4999, True), (5000, True), (5001, False)]
)
def test_a_shorter_object_only_where_the_buffer_is_borrowed_for_one(length: int, fits: bool) -> None:
    at_most = BorrowedBuffer(WHOLE.region, WHOLE.offset, WHOLE.length, at_most=True)
    if fits:
        BorrowedSink(at_most, 100).on_headers(200, headers(length))
    else:
        with pytest.raises(MisfitError):
            BorrowedSink(at_most, 100).on_headers(200, headers(length))
    if length != 5000:
        with pytest.raises(MisfitError):
            BorrowedSink(WHOLE, 100).on_headers(200, headers(length))


def test_what_is_too_long_out_of_order_or_late_is_not_written() -> None:
    WHOLE.view[:] = UNWRITTEN * 5000
    for chunk, offset in ((bytes(5001), 0), (b"x", 1), (b"x", 5000)):
        with pytest.raises(MisfitError):
            BorrowedSink(WHOLE, 0).on_body(chunk, offset)
    sink = BorrowedSink(WHOLE, 0)
    sink.end()
    with pytest.raises(BorrowEndedError):
        sink.on_body(b"x", 0)
    source = BorrowedSource(WHOLE)
    source.end()
    with pytest.raises(BorrowEndedError):
        source.readinto(memoryview(bytearray(1)))
    assert WHOLE.view == UNWRITTEN * 5000
    assert BEHIND.view == UNWRITTEN * 4096


def test_an_error_is_not_an_object() -> None:
    sink = BorrowedSink(WHOLE, 0)
    sink.on_headers(404, headers(5000))
    assert not sink.is_whole


def test_how_long_the_whole_is() -> None:
    assert length_of([("content-length", "5"), ("Content-Range", "bytes 0-4/77")]) == 77
    assert length_of([("Content-Range", "bytes 0-4/77"), ("content-length", "5")]) == 77
    assert length_of([("Content-Range", "bytes 0-4/*")]) is None
    assert length_of([("content-length", "5")]) == 5
    assert length_of([]) is None
    page = PageSink(10)
    page.on_headers(206, [("Content-Range", "bytes 0-9/77")])
    page.on_body(b"0123456789")
    assert (page.page, page.length) == (b"0123456789", 77)
    with pytest.raises(MisfitError):
        page.on_body(b"!")
