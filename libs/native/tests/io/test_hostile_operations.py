"""Wrong arguments are an exception that takes nothing, or an answer; never a crash."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from libs.native.tests.io.io_rig import Memory, Rig
from lmcache_native.io import COPY, READ, READ_FILE, SYNC, WRITE, WRITE_FILE, IoEngine

AT = 4096  # an address that is never touched


@pytest.mark.parametrize(
    "operation",
    [
        (), (READ,), (99, 0), (-1, 0), ("READ", 0), [SYNC, 0, 0], None, 5, (2**70, 0),
        (SYNC, 0), (SYNC, 0, 0, 0), (SYNC, 0, -1), (SYNC, 0, 2**31), (SYNC, 0, True), (SYNC, 2**63, 0), (SYNC, "0", 0),
        (READ, 0, -1, 0, AT, 8, 0, -1), (READ, 0, 0, -1, AT, 8, 0, -1), (READ, 0, 0, 0, -1, 8, 0, -1),
        (READ, 0, 0, 0, 2**64, 8, 0, -1), (READ, 0, 0, 0, AT, -8, 0, -1), (READ, 0, 0, 0, 0, 8, 0, -1),
        (READ, 0, 0, 2**63 - 8, AT, 8 + 1, 0, -1), (READ, 0, 0, 0, 2**64 - 8, 16, 0, -1), (READ, 0, 0, 0, AT, 8.0, 0, -1),
        (READ, 0, 0, 0, AT, 8, 3, -1), (READ, 0, 0, 0, AT, 8, 2**21, -1), (READ, 0, 0, 0, AT, 8, -512, -1),
        (READ, 0, 0, 0, AT, 8, 0, 9), (READ, 0, 0, 0, AT, 8, 0, -2),
        (WRITE, 0, 0, 0, AT, 8, 0, 9, 0), (WRITE, 0, 0, 0, AT, 8, 0, -1, 0), (WRITE, 0, 0, 0, AT, 8, 0, 0, 3),
        (READ_FILE, 0, "text", AT, 8, 0, -1, 0), (READ_FILE, 0, b"", AT, 8, 0, -1, 0), (READ_FILE, 0, b"a\0b", AT, 8, 0, -1, 0),
        (READ_FILE, 0, b"a", AT, 8, 0, -1, -1), (READ_FILE, 0, b"a", AT, 2**63, 0, -1, 0),
        (WRITE_FILE, 0, b"a", "b", AT, 8, 0, 0), (WRITE_FILE, 0, b"a", b"b", AT, 8, 0, -1),
        (WRITE_FILE, 0, b"a", b"b", AT, 8, 0),
        (COPY, 0, 0, AT, 8, 0, -1), (COPY, 0, AT, 0, 8, 0, -1), (COPY, 0, AT, AT, 8, 9, -1), (COPY, 0, AT, AT, 8, 0, 9),
        (COPY, 0, 2**64 - 4, AT, 8, 0, -1),
    ],
)  # fmt: skip
def test_a_malformed_operation_takes_none_with_it(rig: Rig, operation: Any) -> None:
    before = rig.engine.counters()
    with pytest.raises((TypeError, ValueError), match="operation 1"):
        rig.engine.submit([(SYNC, 0, 0), operation])
    assert rig.engine.counters() == before


@pytest.mark.parametrize("operations", [None, 5, object()])
def test_no_sequence(rig: Rig, operations: Any) -> None:
    with pytest.raises(TypeError):
        rig.engine.submit(operations)


def test_nothing_to_do(rig: Rig) -> None:
    rig.engine.submit([])
    assert rig.engine.answers() == []


def test_a_closed_descriptor_is_an_answer(rig: Rig) -> None:
    fd = os.open("/dev/null", os.O_RDWR)
    os.close(fd)
    memory = Memory(4096)
    answers = rig.do(
        (SYNC, fd), (READ, fd, 0, memory.address, 8, 0, 0), (WRITE, fd, 0, memory.address, 8, 0, 0, 0),
        (READ, fd, 0, memory.address, 4096, 4096, 0),
    )  # fmt: skip
    assert answers == [(-errno.EBADF, None)] * 4


def test_the_wrong_direction_is_an_answer(rig: Rig) -> None:
    memory = Memory(4096)
    for flags, operation in ((os.O_WRONLY, (READ, 0)), (os.O_RDONLY, (WRITE, 0, 0))):
        fd = os.open("/dev/zero", flags)
        kind, *rest = operation
        assert rig.do_one(kind, fd, 0, memory.address, 8, 0, *rest) == (-errno.EBADF, None)
        os.close(fd)


@pytest.mark.parametrize(
    "arguments",
    [
        ("fast", 1, 1, 1), ("", 1, 1, 1), ("auto", 0, 1, 1), ("auto", -1, 1, 1), ("auto", 100_000, 1, 1), ("auto", 1, 0, 1),
        ("auto", 1, 2**40, 1), ("auto", 1, 1, 0), ("auto", 1, 1, 2**63), (None, 1, 1, 1), ("auto", 1.5, 1, 1),
    ],
)  # fmt: skip
def test_an_engine_that_cannot_be(arguments: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        IoEngine(*arguments)


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_a_close_that_cannot_be(rig: Rig, seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds"):
        rig.engine.close(seconds)
    rig.engine.submit([])


@pytest.mark.parametrize(("address", "length"), [(0, 8), (8, 0), (2**64 - 8, 16)])
def test_memory_that_cannot_be(rig: Rig, address: int, length: int) -> None:
    with pytest.raises(ValueError, match="memory"):
        rig.engine.register_memory(address, length)


def test_memory_and_files_that_are_not_there(rig: Rig) -> None:
    assert not rig.engine.register_memory(4096, 1 << 20)
    assert not rig.engine.register_file(1_000_000)
    with pytest.raises(ValueError, match="fd"):
        rig.engine.register_file(-1)
