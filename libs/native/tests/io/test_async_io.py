"""The same for coroutines: one answer each, one batch a turn, and no cancellation before the memory is free."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import xxhash

from libs.native.tests.io.held_memory import HeldMemory
from libs.native.tests.io.io_rig import Memory, opened
from lmcache_native.async_io import AsyncIo, Engine
from lmcache_native.io import IoEngine

MIB = 1 << 20


class Counting:
    """An engine that remembers how much it was given at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.batches: list[int] = []
        self.fileno, self.answers, self.close = engine.fileno, engine.answers, engine.close

    def submit(self, operations: Sequence[object]) -> None:
        self.batches.append(len(operations))
        self._engine.submit(operations)  # type: ignore[arg-type]  # whatever came


def run(kind: str, test: Callable[[AsyncIo, Counting], Awaitable[None]], workers: int = 2) -> None:
    """`test` on a loop of its own, and the engine closed after it."""

    async def main() -> None:
        engine = Counting(IoEngine(kind, workers, 16, 64 * MIB))
        io = AsyncIo(engine)
        await test(io, engine)
        assert await io.close(30)

    asyncio.run(main())


def test_every_kind(kind: str, tmp_path: Path) -> None:
    memory, data = Memory(4 * MIB), os.urandom(MIB)
    digest = xxhash.xxh3_128_digest(data[4096:])
    temporary, path = os.fsencode(tmp_path / "temporary"), os.fsencode(tmp_path / "path")
    here, there = memory.address, memory.address + MIB

    async def test(io: AsyncIo, _: Counting) -> None:
        memory.view[:MIB] = data
        assert await io.write_file(temporary, path, here, MIB, 4096, sync=1) == (MIB, None)
        assert await io.read_file(path, there, MIB, 4096, digest_from=4096, read_ahead_bytes=1) == (MIB, digest)
        with opened(Path(os.fsdecode(path))) as fd:
            assert await io.read(fd, 4096, there, MIB - 4096, digest_from=0) == (MIB - 4096, digest)
            assert await io.write(fd, MIB, here, MIB, head_bytes=4096, sync=2) == (MIB, None)
            assert await io.sync(fd) == (0, None)
        assert await io.copy(here, there + MIB, MIB, head_bytes=4096, digest_from=4096) == (MIB, digest)
        assert memory.view[2 * MIB : 3 * MIB] == data

    run(kind, test)
    assert Path(os.fsdecode(path)).read_bytes() == data * 2


def test_one_turn_is_one_batch(kind: str) -> None:
    memory = Memory(MIB)

    async def test(io: AsyncIo, engine: Counting) -> None:
        for count in (5, 1, 40):
            await asyncio.gather(*[io.copy(memory.address, memory.address + 4096, 8) for _ in range(count)])
        assert engine.batches == [5, 1, 40]

    run(kind, test)


def test_errors_have_their_number_and_the_file(kind: str, tmp_path: Path) -> None:
    memory = Memory(4096)

    async def test(io: AsyncIo, _: Counting) -> None:
        with pytest.raises(FileNotFoundError, match="missing"):
            await io.read_file(os.fsencode(tmp_path / "missing"), memory.address, 8)
        with pytest.raises(OSError, match="file descriptor") as raised:
            await io.sync(1_000_000)
        assert raised.value.errno == errno.EBADF

    run(kind, test)


def test_a_malformed_operation_fails_alone(kind: str) -> None:
    memory = Memory(4096)

    async def test(io: AsyncIo, engine: Counting) -> None:
        good, bad = io.copy(memory.address, memory.address, 8), io.copy(memory.address, memory.address, -8)
        answers = await asyncio.gather(good, bad, io.copy(memory.address, memory.address, 16), return_exceptions=True)
        assert answers[0] == (8, None)
        assert isinstance(answers[1], ValueError)
        assert answers[2] == (16, None)
        assert engine.batches == [3, 1, 1, 1]

    run(kind, test)


def test_a_cancellation_waits_for_the_memory(kind: str) -> None:
    held, memory = HeldMemory(), Memory(4096)

    async def test(io: AsyncIo, _: Counting) -> None:
        task = asyncio.create_task(io.copy(held.address, memory.address, 8))
        await asyncio.sleep(0.05)
        for _again in range(3):
            task.cancel()
            await asyncio.sleep(0.02)
            assert not task.done()
        held.release()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(kind, test)


def test_a_deadline_passes_when_the_memory_is_free(kind: str) -> None:
    held, memory = HeldMemory(), Memory(4096)

    async def test(io: AsyncIo, _: Counting) -> None:
        asyncio.get_running_loop().call_later(0.2, held.release)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await io.copy(held.address, memory.address, 8)
        assert (await io.copy(held.address, memory.address, 8)).moved_bytes == 8

    run(kind, test)


def test_close_completes_every_operation(kind: str) -> None:
    held, memory = HeldMemory(), Memory(4096)

    async def main() -> None:
        io = AsyncIo(IoEngine(kind, 1, 1, MIB))
        under_way, waiting = (asyncio.create_task(io.copy(held.address, memory.address, 8)) for _ in range(2))
        await asyncio.sleep(0)
        assert not await io.close(0.05)
        with pytest.raises(OSError, match="canceled") as raised:
            await waiting
        assert raised.value.errno == errno.ECANCELED
        assert not under_way.done()
        held.release()
        assert await io.close(30)
        assert await under_way == (8, None)
        with pytest.raises(RuntimeError, match="closed"):
            await io.sync(0)
        assert await io.close(0)

    asyncio.run(main())


def test_close_takes_what_was_asked_for_in_its_turn(kind: str) -> None:
    memory = Memory(4096)

    async def main() -> None:
        io = AsyncIo(IoEngine(kind, 1, 1, MIB))
        asked = asyncio.gather(*[io.copy(memory.address, memory.address, 8) for _ in range(3)], return_exceptions=True)
        await asyncio.sleep(0)
        assert await io.close(30)
        answers = await asked
        assert all(answer == (8, None) or isinstance(answer, OSError) for answer in answers)

    asyncio.run(main())
