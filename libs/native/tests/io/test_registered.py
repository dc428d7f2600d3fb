"""Registered memory and files are faster at most: never other bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import xxhash

from libs.native.tests.io.io_rig import Memory, Rig, opened
from lmcache_native.io import READ, WRITE, IoEngine

MIB = 1 << 20
REGISTRATIONS = 50


@pytest.fixture
def own(kind: str) -> Rig:
    return Rig(IoEngine(kind, 2, 8, 64 * MIB))


@pytest.mark.parametrize("align", [0, 4096])
def test_registered_or_not_bytes_are_the_same(own: Rig, tmp_path: Path, align: int) -> None:
    path, memory, content = tmp_path / "file", Memory(16 * MIB), os.urandom(8 * MIB)
    path.write_bytes(content)
    registered = own.engine.register_memory(memory.address + MIB, 4 * MIB)
    assert own.engine.counters()["registered_bytes"] == (4 * MIB if registered else 0)
    with opened(path, os.O_RDWR | (os.O_DIRECT if align else 0)) as fd:
        own.engine.register_file(fd)
        for at in (0, MIB // 2, MIB, 3 * MIB, 8 * MIB):  # before it, across its edges, in it, behind it
            answer = own.do_one(READ, fd, 0, memory.address + at, 8 * MIB, align, 0)
            assert answer == (8 * MIB, xxhash.xxh3_128_digest(content))
            assert memory.view[at : at + 8 * MIB] == content
        assert own.do_one(WRITE, fd, 0, memory.address + 8 * MIB, 8 * MIB, align, 4096, 0) == (8 * MIB, None)
    assert path.read_bytes() == content
    assert own.engine.close(30)
    assert own.engine.counters()["registered_bytes"] == 0


def test_the_threads_engine_has_no_use_for_it() -> None:
    engine, memory = IoEngine("threads", 1, 1, 1), Memory(4096)
    assert not engine.register_memory(memory.address, 4096)
    assert not engine.register_file(0)
    assert engine.close(30)


def test_overlapping_memory_is_registered_once(own: Rig) -> None:
    memory = Memory(4 * MIB)
    if not own.engine.register_memory(memory.address + MIB, MIB):
        pytest.skip("no memory can be registered here")
    for begin, length in ((0, 4), (1, 1), (1, 2), (0, 2)):
        assert not own.engine.register_memory(memory.address + begin * MIB, length * MIB)
    assert own.engine.register_memory(memory.address, MIB)
    assert own.engine.register_memory(memory.address + 2 * MIB, MIB)
    assert own.engine.close(30)


def test_the_ring_serves_others_while_much_memory_is_registered(tmp_path: Path) -> None:
    if not IoEngine.has_io_uring():
        pytest.skip("io_uring is not built in, or this kernel does not allow it")
    path, memory = tmp_path / "file", Memory(321 * MIB)
    path.write_bytes(bytes(MIB))
    memory.view[::4096] = b"x" * (len(memory.view) // 4096)  # resident, or registering would wait for its pages
    # Whether a read is answered between two pieces is the scheduler's choice, each time anew; an engine that registers all of
    # it at once answers none there, however often.
    for _ in range(REGISTRATIONS):
        rig = Rig(IoEngine("io_uring", 2, 8, 64 * MIB))
        with opened(path, os.O_RDONLY | os.O_DIRECT) as fd, ThreadPoolExecutor(1) as other:
            registering = other.submit(rig.engine.register_memory, memory.address + MIB, 320 * MIB)
            seen = set(registered_at_answers(rig, fd, memory.address, registering))
        assert rig.engine.close(30)
        if not registering.result():
            pytest.skip("so much memory cannot be registered here")
        if seen - {0, 320 * MIB}:
            return
    pytest.fail(f"in {REGISTRATIONS} registrations no read was answered while one went on")


def registered_at_answers(rig: Rig, fd: int, address: int, registering: Future[bool]) -> Iterator[int]:
    """How much was registered after each of the reads that are made until it has ended."""
    while not registering.done():
        assert rig.do_one(READ, fd, 0, address, 4096, 4096, 0)[0] == 4096
        yield rig.engine.counters()["registered_bytes"]


def test_memory_that_cannot_be_registered_to_its_end_is_not_registered_at_all() -> None:
    if not IoEngine.has_io_uring():
        pytest.skip("io_uring is not built in, or this kernel does not allow it")
    engine, memory = IoEngine("io_uring", 1, 1, 1), Memory(160 * MIB)
    memory.forbid(150 * MIB, MIB)
    assert not engine.register_memory(memory.address, 160 * MIB)
    assert engine.counters()["registered_bytes"] == 0
    assert engine.register_memory(memory.address, 150 * MIB), "what was registered on the way was not released"
    assert engine.register_memory(memory.address + 151 * MIB, 9 * MIB)
    assert engine.counters()["registered_bytes"] == 159 * MIB
    assert engine.close(30)


def test_a_descriptor_that_became_another_file_is_read_as_that(own: Rig, tmp_path: Path) -> None:
    """Its number was registered, and was used again since."""
    old, new, memory = tmp_path / "old", tmp_path / "new", Memory(4096)
    old.write_bytes(b"o" * 4096)
    new.write_bytes(b"n" * 4096)
    with opened(old) as fd:
        own.engine.register_file(fd)
        with opened(new) as other:
            os.dup2(other, fd)
        assert own.do_one(READ, fd, 0, memory.address, 4096, 0, -1)[0] == 4096
    assert memory.view == b"n" * 4096
    assert own.engine.close(30)
