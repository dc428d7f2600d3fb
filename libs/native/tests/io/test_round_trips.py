"""Whatever is aligned and whatever is not: the bytes are those that were asked for, no other changes, and digests are true."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.native.tests.io.io_rig import Memory, Rig, opened
from lmcache_native.io import COPY, READ, READ_FILE, WRITE, WRITE_FILE

MIB = 1 << 20
ROOM = 4 * MIB
EXAMPLES = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)  # the fixtures are folders and memory that every example fills anew

offsets = st.one_of(st.sampled_from([0, 1, 511, 512, 4095, 4096, 8192, MIB - 1, MIB]), st.integers(0, MIB))
lengths = st.one_of(
    st.sampled_from([0, 1, 511, 512, 4096, 4097, 65_536, MIB - 4096, MIB, MIB + 1, 2 * MIB]), st.integers(0, 2 * MIB)
)
alignments = st.sampled_from([0, 512, 4096])


@pytest.fixture(scope="module")
def memory() -> Memory:
    return Memory(ROOM)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "medium"


def noise(seed: int, length: int) -> bytes:
    return random.Random(seed).randbytes(length)


def expected_digest(data: bytes, begin: int) -> bytes | None:
    return None if begin < 0 else xxhash.xxh3_128_digest(data[begin:])


@EXAMPLES
@given(data=st.data(), offset=offsets, length=lengths, shift=offsets, align=alignments, sync=st.integers(0, 2))
def test_a_write_changes_its_range_and_nothing_else(
    rig: Rig,
    memory: Memory,
    path: Path,
    data: st.DataObject,
    offset: int,
    length: int,
    shift: int,
    align: int,
    sync: int,
) -> None:
    before, written = noise(offset, 3 * MIB), noise(length, length)
    head = data.draw(st.one_of(st.just(0), st.integers(0, length)))
    path.write_bytes(before)
    memory.view[shift : shift + length] = written
    with opened(path, os.O_RDWR | (os.O_DIRECT if align else 0)) as fd:
        answer = rig.do_one(WRITE, fd, offset, memory.address + shift, length, align, head, sync)
    assert answer == (length, None)
    assert path.read_bytes() == before[:offset] + written + before[offset + length :]


@EXAMPLES
@given(data=st.data(), offset=offsets, length=lengths, shift=offsets, align=alignments)
def test_a_read_fills_its_memory_and_nothing_else(
    rig: Rig, memory: Memory, path: Path, data: st.DataObject, offset: int, length: int, shift: int, align: int
) -> None:
    content = noise(offset + 1, 3 * MIB + 77)
    path.write_bytes(content)
    memory.view[:] = bytes([0xEE]) * ROOM
    begin = data.draw(st.integers(-1, length))
    with opened(path, os.O_RDONLY | (os.O_DIRECT if align else 0)) as fd:
        answer = rig.do_one(READ, fd, offset, memory.address + shift, length, align, begin)
    wanted = content[offset : offset + length]
    assert answer == (length, expected_digest(wanted, begin))
    assert memory.view[shift : shift + length] == wanted
    assert bytes(memory.view[:shift]).strip(b"\xee") == bytes(memory.view[shift + length :]).strip(b"\xee") == b""


@EXAMPLES
@given(
    data=st.data(),
    length=lengths,
    shift=offsets,
    align=alignments,
    sync=st.integers(0, 2),
    ahead=st.sampled_from([0, 4096]),
)
def test_a_file_comes_back_as_it_was_written(
    rig: Rig,
    memory: Memory,
    tmp_path: Path,
    data: st.DataObject,
    length: int,
    shift: int,
    align: int,
    sync: int,
    ahead: int,
) -> None:
    written, begin = noise(length + 2, length), data.draw(st.integers(-1, length))
    temporary, path = os.fsencode(tmp_path / "temporary"), os.fsencode(tmp_path / "path")
    memory.view[shift : shift + length] = written
    assert rig.do_one(WRITE_FILE, temporary, path, memory.address + shift, length, align, sync) == (length, None)
    memory.view[shift : shift + length] = bytes(length)
    answer = rig.do_one(READ_FILE, path, memory.address + shift, length, align, begin, ahead)
    assert answer == (length, expected_digest(written, begin))
    assert memory.view[shift : shift + length] == written
    assert os.listdir(tmp_path) == ["path"]
    assert os.stat(path).st_mode & 0o777 == 0o600
    os.unlink(path)


@EXAMPLES
@given(data=st.data(), length=lengths, source=offsets, shift=offsets)
def test_a_copy_is_exact(rig: Rig, data: st.DataObject, length: int, source: int, shift: int) -> None:
    giver, taker = Memory(ROOM), Memory(ROOM)
    content = noise(length + 3, length)
    giver.view[source : source + length] = content
    head, begin = data.draw(st.integers(0, length)), data.draw(st.integers(-1, length))
    answer = rig.do_one(COPY, giver.address + source, taker.address + shift, length, head, begin)
    assert answer == (length, expected_digest(content, begin))
    assert bytes(taker.view) == bytes(shift) + content + bytes(ROOM - shift - length)


@pytest.mark.parametrize("length", [8192, 64 * 1024, MIB])
def test_the_digest_of_a_copy_is_that_of_the_bytes_that_were_written(rig: Rig, length: int) -> None:
    """Also where the source changes meanwhile: memory of another process may."""
    giver, taker = Memory(length), Memory(length)
    patterns, ended = [noise(each, length) for each in (5, 6)], threading.Event()

    def change() -> None:
        while not ended.is_set():
            for pattern in patterns:
                giver.view[:] = pattern

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(300):
            result, digest = rig.do_one(COPY, giver.address, taker.address, length, 0, 4096)
            assert (result, digest) == (length, xxhash.xxh3_128_digest(taker.view[4096:]))
    finally:
        ended.set()
        changing.join()


@pytest.mark.parametrize("align", [0, 4096])
def test_many_at_a_time(rig: Rig, path: Path, align: int) -> None:
    """More and larger than the limits and than a ring has room for; each range is one operation's."""
    count, size = 48, 5 * MIB // 2
    memory, content = Memory(count * 4096 * 4), noise(4, 16 * MIB)
    path.write_bytes(content)
    wide = Memory(4 * size)
    with opened(path, os.O_RDONLY | (os.O_DIRECT if align else 0)) as fd:
        small = [(READ, fd, index * 8192, memory.address + index * 16384, 16384, align, 0) for index in range(count)]
        large = [(READ, fd, index * 4096, wide.address + index * size, size, align, 0) for index in range(4)]
        answers = rig.do(*small, *large)
    pieces = [(index * 8192, 16384) for index in range(count)] + [(index * 4096, size) for index in range(4)]
    for (at, length), answer in zip(pieces, answers, strict=True):
        assert answer == (length, xxhash.xxh3_128_digest(content[at : at + length]))


def test_what_is_misaligned_is_counted(rig: Rig, memory: Memory, path: Path) -> None:
    path.write_bytes(bytes(MIB))
    with opened(path, os.O_RDWR | os.O_DIRECT) as fd:
        before = rig.engine.counters()["bounced"]
        rig.do((READ, fd, 0, memory.address, 8192, 4096, -1), (WRITE, fd, 0, memory.address + MIB, 8192, 4096, 4096, 0))
        assert rig.engine.counters()["bounced"] == before
        rig.do(
            (READ, fd, 0, memory.address + 8, 8192, 4096, -1), (WRITE, fd, 100, memory.address + MIB, 5000, 4096, 0, 0)
        )
        assert rig.engine.counters()["bounced"] == before + 2


@pytest.mark.parametrize(
    ("offset", "length", "head"),
    [(1, 1, 0), (512, 512, 0), (1024, 2048, 512), (100, 50, 10), (5000, 20, 20), (4095, 2, 1)],
)
def test_a_write_within_a_block_touches_no_other(
    rig: Rig, memory: Memory, path: Path, offset: int, length: int, head: int
) -> None:
    """There is no whole block in it, and no end of it may be looked for before its beginning."""
    content = noise(6, 16_384)
    path.write_bytes(content)
    memory.view[:length] = b"x" * length
    with opened(path, os.O_RDWR | os.O_DIRECT) as fd:
        assert rig.do_one(WRITE, fd, offset, memory.address, length, 4096, head, 0) == (length, None)
    assert path.read_bytes() == content[:offset] + b"x" * length + content[offset + length :]


@pytest.mark.parametrize("begin", [100, 4096])
def test_a_digest_may_begin_at_any_alignment(rig: Rig, memory: Memory, path: Path, begin: int) -> None:
    content = noise(7, 2 * MIB)
    path.write_bytes(content)
    with opened(path, os.O_RDONLY | os.O_DIRECT) as fd:
        before = rig.engine.counters()["bounced"]
        answer = rig.do_one(READ, fd, 0, memory.address, 2 * MIB, 4096, begin)
    assert answer == (2 * MIB, xxhash.xxh3_128_digest(content[begin:]))
    assert rig.engine.counters()["bounced"] == before


def test_another_alignment_than_the_medium_has_is_not_an_error(rig: Rig, memory: Memory, path: Path) -> None:
    """`align` says 16, and the file system wants 512 or more."""
    content = noise(5, 65_536)
    path.write_bytes(content)
    with opened(path, os.O_RDWR | os.O_DIRECT) as fd:
        answer = rig.do_one(READ, fd, 16, memory.address + 16, 4000, 16, 0)
        assert answer == (4000, xxhash.xxh3_128_digest(content[16:4016]))
        memory.view[:48] = b"x" * 48
        assert rig.do_one(WRITE, fd, 16, memory.address, 48, 16, 16, 2) == (48, None)
    assert path.read_bytes() == content[:16] + b"x" * 48 + content[64:]
