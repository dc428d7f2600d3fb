from __future__ import annotations

import ctypes
import os
import struct
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmcache_client import l1_segment, prefault
from lmcache_client.errors import LMCacheError, ProtocolError, ResourceError
from lmcache_client.extents import Extent
from lmcache_client.l1_segment import L1Segment
from lmcache_client.messages import SlotDescriptor
from lmcache_client.prefault import Prefault
from lmcache_core.l1.arena import Arena, shared_arena

MIB = 2**20
SIZE = 16 * MIB


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = shared_arena(SIZE, f"test-{uuid.uuid4().hex}")
    yield arena
    arena.close()


@pytest.fixture
def segment(arena: Arena) -> Iterator[L1Segment]:
    assert arena.segment
    with L1Segment(arena.segment, SIZE) as segment:
        yield segment


def slot(offset: int, length: int) -> SlotDescriptor:
    return SlotDescriptor(offset, length, (length,), "uint8")


def test_both_sides_see_the_same_bytes(arena: Arena, segment: L1Segment) -> None:
    assert arena.back(0, MIB)
    segment.payload(slot(4096, 5))[:] = b"hello"
    assert bytes(arena.region.view[4096:4101]) == b"hello"
    arena.region.view[4096:4097] = b"H"
    assert ctypes.string_at(segment.payload_address(slot(4096, 5)), 5) == b"Hello"
    assert segment.address + 4096 == segment.payload_address(slot(4096, 5))
    assert len(segment.view) == segment.size_bytes == SIZE


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, -1), (SIZE, 1), (SIZE - 1, 2), (2**63, 1), (0, SIZE + 1)])
def test_a_slot_outside_is_refused(segment: L1Segment, offset: int, length: int) -> None:
    for ask in (segment.payload, segment.payload_address):
        with pytest.raises(ProtocolError, match=rf"slot of {length} bytes at {offset}: outside of 'lmcache-l1-test-"):
            ask(slot(offset, length))


def test_the_whole_of_it_is_inside(segment: L1Segment) -> None:
    assert len(segment.payload(slot(0, SIZE))) == SIZE
    assert len(segment.payload(slot(SIZE, 0))) == 0


def test_it_outlives_the_server(arena: Arena, segment: L1Segment) -> None:
    arena.back(0, MIB)
    segment.view[:5] = b"there"
    arena.close()
    assert bytes(segment.view[:5]) == b"there"
    segment.view[SIZE - 1 :] = b"!"
    assert segment.view[SIZE - 1] == ord("!")


def test_nothing_is_had_of_a_closed_one(arena: Arena) -> None:
    assert arena.segment
    segment = L1Segment(f"/{arena.segment}", SIZE)
    held = segment.payload(slot(0, 4))
    segment.close()
    segment.close()
    held[:] = b"mine"  # a view keeps the memory
    for use in (
        lambda: segment.address,
        lambda: segment.view,
        lambda: segment.allocated_bytes,
        lambda: segment.payload(slot(0, 1)),
        lambda: segment.payload_address(slot(0, 1)),
        lambda: segment.prefault(0, 1),
    ):
        with pytest.raises(LMCacheError, match="is closed; register again"):
            use()
    held.release()


def test_closing_leaves_nothing_open_where_something_still_uses_the_view(arena: Arena) -> None:
    assert arena.segment
    before = len(os.listdir("/proc/self/fd"))
    segment = L1Segment(arena.segment, SIZE)
    held = struct.iter_unpack("4096s", segment.view)
    segment.close()
    assert next(held) == (bytes(4096),)
    del held
    segment.close()
    del segment
    assert len(os.listdir("/proc/self/fd")) == before


def test_releasing_a_view_does_not_take_it_from_others(segment: L1Segment) -> None:
    with segment.view as view:
        view[:5] = b"there"
    assert bytes(segment.payload(slot(0, 5))) == b"there"


@pytest.mark.parametrize(
    "name", ["", "/", ".", "..", "../etc/passwd", "a/b", "//a", "a\0b", ".hidden", "x" * 300, "a\n"]
)
def test_a_name_that_is_not_a_file_of_the_folder(name: str) -> None:
    with pytest.raises(ProtocolError, match="a name of one file in /dev/shm belongs there"):
        L1Segment(name, SIZE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files that are not segments of ours."""
    monkeypatch.setattr(l1_segment, "SHM_ROOT", tmp_path)
    return tmp_path


def made(path: Path, size: int = SIZE, mode: int = 0o600) -> None:
    with path.open("wb") as file:
        file.truncate(size)
    path.chmod(mode)


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda path: None, "No such file or directory; server and engine must share /dev/shm"),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: os.mkfifo(path, 0o600), "it is not a file"),
        (lambda path: path.symlink_to("/etc/hostname"), "Too many levels of symbolic links"),
        (lambda path: made(path, SIZE - 1), f"it has {SIZE - 1} bytes, where {SIZE} were offered"),
        (lambda path: made(path, mode=0o620), "other users may write to it"),
        (lambda path: made(path, mode=0o602), "other users may write to it"),
    ],
)  # fmt: skip
def test_what_is_not_a_segment_of_ours(folder: Path, make: object, fault: str) -> None:
    make(folder / "segment")  # type: ignore[operator]
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ResourceError, match=fault):
        L1Segment("segment", SIZE)
    assert len(os.listdir("/proc/self/fd")) == before, "a descriptor is left open"


def test_one_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(folder / "segment")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ResourceError, match=r"it belongs to user \d+; run server and engine as the same user"):
        L1Segment("segment", SIZE)


def test_an_empty_offer(folder: Path) -> None:
    made(folder / "segment")
    with pytest.raises(ResourceError, match="where 0 were offered"):
        L1Segment("segment", 0)


# Prefault


def wait_for(segment: L1Segment, prefaulted: int) -> None:
    end = time.monotonic() + 20
    while segment.prefaulted_bytes < prefaulted:
        assert time.monotonic() < end
        time.sleep(0.002)


def test_prefault_keeps_what_is_there_and_allocates_what_is_not(arena: Arena, segment: L1Segment) -> None:
    arena.back(0, MIB)
    assert segment.allocated_bytes == MIB
    arena.region.view[:5] = b"there"
    segment.prefault(0, 6 * MIB)
    wait_for(segment, 6 * MIB)
    assert bytes(segment.view[:5]) == b"there"
    assert segment.allocated_bytes == 6 * MIB


def test_nothing_is_prefaulted_twice_and_nothing_outside(segment: L1Segment) -> None:
    segment.prefault(MIB + 1, MIB - 1)
    segment.prefault(0, 3 * MIB)
    segment.prefault(2 * MIB, MIB)
    segment.prefault(SIZE - 4096, 10 * MIB)
    segment.prefault(SIZE, MIB)
    segment.prefault(0, 0)
    wait_for(segment, 3 * MIB + 4096)
    assert segment.allocated_bytes == 3 * MIB + 4096
    assert list(segment._prefault._asked) == [Extent(0, 3 * MIB), Extent(SIZE - 4096, 4096)]


def test_closing_releases_what_is_left(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefault, "SLICE_BYTES", 4096)
    assert arena.segment
    segment = L1Segment(arena.segment, SIZE)
    segment.prefault(0, SIZE)
    segment.close()
    done = segment.prefaulted_bytes
    time.sleep(0.02)
    assert segment.prefaulted_bytes == done < SIZE


@pytest.mark.parametrize("answer", [False, OSError(12, "Cannot allocate memory")])
def test_where_it_is_not_available_it_is_skipped(monkeypatch: pytest.MonkeyPatch, answer: bool | OSError) -> None:
    asked: list[int] = []

    def populate(address: int, length: int) -> bool:
        asked.append(address)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(prefault, "populate", populate)
    one = Prefault(4096, SIZE)
    one.ask(0, SIZE)
    assert one._thread
    one._thread.join(10)
    one.ask(0, SIZE)
    one.end()
    assert asked == [4096]
    assert one.done_bytes == 0
