"""The file format: whatever happens to a file, what is read is what was written, up to where it is whole."""

from __future__ import annotations

from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_observability.trace.format import MAGIC, FrameReader, encode_record, frame
from lmcache_observability.trace.records import (
    Answer,
    Began,
    Closed,
    Ended,
    EventRecord,
    Lookup,
    Lost,
    Record,
    Retrieved,
    Stored,
)

TIMES, COUNTS, NAMES = st.floats(0, 1e12), st.integers(0, 2**63), st.text(max_size=20)
VALUES = st.none() | st.booleans() | COUNTS | st.floats(0, 1) | NAMES | st.binary(max_size=40)
TRANSFER = (TIMES, NAMES, NAMES, NAMES, COUNTS, COUNTS, COUNTS, COUNTS, st.floats(0, 10))
RECORDS: st.SearchStrategy[Record] = st.one_of(
    st.builds(Began, TIMES, NAMES, NAMES, NAMES, COUNTS),
    st.builds(Lookup, TIMES, NAMES, NAMES, NAMES, COUNTS, COUNTS, COUNTS, st.binary(max_size=96)),
    st.builds(Answer, TIMES, NAMES, COUNTS, COUNTS, COUNTS, st.floats(0, 10)),
    st.builds(Stored, *TRANSFER),
    st.builds(Retrieved, *TRANSFER),
    st.builds(Ended, TIMES, NAMES),
    st.builds(EventRecord, TIMES, NAMES, st.dictionaries(NAMES, VALUES, max_size=4)),
    st.builds(Lost, TIMES, COUNTS),
    st.builds(Closed, TIMES),
)
FRAMES = st.lists(st.lists(RECORDS, max_size=6), max_size=6)


def reader_of(data: bytes) -> FrameReader:
    return FrameReader(BytesIO(data), len(data))


def written(frames: list[list[Record]]) -> bytes:
    return MAGIC + b"".join(frame([encode_record(record) for record in records]) for records in frames)


@given(FRAMES)
def test_what_was_written_is_read(frames: list[list[Record]]) -> None:
    reader = reader_of(written(frames))
    assert list(reader) == [record for records in frames for record in records]
    assert reader.torn_bytes == 0


@given(FRAMES, st.data())
def test_a_torn_end_costs_only_its_frame(frames: list[list[Record]], data: st.DataObject) -> None:
    whole = written(frames)
    cut = data.draw(st.integers(len(MAGIC), len(whole)))
    reader = reader_of(whole[:cut])
    records = list(reader)
    complete = [index for index in range(len(frames) + 1) if len(written(frames[:index])) <= cut][-1]
    assert records == [record for each in frames[:complete] for record in each]
    assert reader.good_bytes + reader.torn_bytes == cut


@given(FRAMES, st.binary(min_size=1, max_size=200))
def test_garbage_at_the_end_is_left_out(frames: list[list[Record]], garbage: bytes) -> None:
    reader = reader_of(written(frames) + garbage)
    records = [record for each in frames for record in each]
    assert list(reader)[: len(records)] == records


@given(FRAMES.filter(any), st.data())
def test_a_changed_bit_is_never_read_as_something_else(frames: list[list[Record]], data: st.DataObject) -> None:
    whole = bytearray(written(frames))
    place = data.draw(st.integers(len(MAGIC), len(whole) - 1))
    whole[place] ^= 1 << data.draw(st.integers(0, 7))
    records = [record for each in frames for record in each]
    found = list(reader_of(bytes(whole)))
    assert found == records[: len(found)]


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    assert list(reader_of(MAGIC + data)) == [] or len(data) > 8
    if not data.startswith(MAGIC[:-1]):
        with pytest.raises(ValueError, match="not a recording"):
            reader_of(data)


def test_another_version_is_named() -> None:
    with pytest.raises(ValueError, match="version 9, and this is made for version 1"):
        reader_of(MAGIC[:-1] + b"\x09")


def test_what_is_written_behind_the_end_meanwhile_is_not_read() -> None:
    """A server goes on recording; what a reader says of the end is of one moment."""
    first: list[Record] = [Lost(1.0, 1)]
    later: list[Record] = [Lost(2.0, 2)]
    data = written([first])
    reader = FrameReader(BytesIO(written([first, later])), len(data) + 3)
    assert list(reader) == first
    assert reader.torn_bytes == 3


def test_one_frame_is_in_memory_at_a_time() -> None:
    class Watched(BytesIO):
        asked = 0

        def read(self, size: int | None = -1, /) -> bytes:
            self.asked = max(self.asked, len(self.getbuffer()) if size is None or size < 0 else size)
            return super().read(size)

    frames: list[list[Record]] = [[Ended(1.0, f"request-{number}")] for number in range(100)]
    data = written(frames)
    file = Watched(data)
    assert len(list(FrameReader(file, len(data)))) == 100
    assert 0 < file.asked < 100
