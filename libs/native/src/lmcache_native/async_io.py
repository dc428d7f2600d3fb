"""`IoEngine` for coroutines: one answer for each operation, batches of whatever one turn of the loop asks for.

io = AsyncIo(IoEngine("auto", workers=4, queue_depth=64, bytes_in_flight=1 << 30))
moved_bytes, digest = await io.read_file(b"/kv/1.kv", address, length, digest_from=4096)
await io.close(5)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from lmcache_native._io import COPY, READ, READ_FILE, SYNC, WRITE, WRITE_FILE

if TYPE_CHECKING:
    from lmcache_native._io import Answer, Operation

NO_DIGEST: Final = -1


class IoResult(NamedTuple):
    moved_bytes: int
    digest: bytes | None
    """xxh3-128 in canonical form, where one was asked for."""


class Engine(Protocol):
    """What is used of an `IoEngine`, whose docstrings say what each does."""

    def fileno(self) -> int: ...
    def submit(self, operations: Sequence[Operation]) -> None: ...
    def answers(self) -> list[Answer]: ...
    def close(self, seconds: float) -> bool: ...


class _Pending:
    __slots__ = ("answer", "waiter")

    def __init__(self, waiter: asyncio.Future[None]) -> None:
        self.answer: tuple[int, bytes | None] | Exception | None = None
        self.waiter = waiter

    def settle(self, answer: tuple[int, bytes | None] | Exception) -> None:
        self.answer = answer
        if not self.waiter.done():
            self.waiter.set_result(None)


class AsyncIo:
    """Operations of an engine with no other submitter or reader of answers.  Make it on the loop that uses it.

    Each method waits for its operation.  It raises OSError with the engine's errno, RuntimeError after `close`, and what
    `IoEngine.submit` raises for arguments that cannot be.  **A cancellation passes only when the engine has answered**:
    until then the memory is borrowed, and may be written."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, _Pending] = {}
        self._batch: list[Operation] = []
        self._next_token = 0
        self._fd = engine.fileno()
        self._loop.add_reader(self._fd, self._settle_answers)

    async def read(
        self, fd: int, offset: int, address: int, length: int, align: int = 0, digest_from: int = NO_DIGEST
    ) -> IoResult:
        """Bytes of an open file or device into memory.  ENODATA where it ends before."""
        token, pending = self._begin()
        self._put((READ, token, fd, offset, address, length, align, digest_from))
        return await self._result(pending)

    async def write(
        self, fd: int, offset: int, address: int, length: int, align: int = 0, *, head_bytes: int = 0, sync: int = 0
    ) -> IoResult:
        """Memory into an open file or device; the first `head_bytes` of it only once all the rest was written."""
        token, pending = self._begin()
        self._put((WRITE, token, fd, offset, address, length, align, head_bytes, sync))
        return await self._result(pending)

    async def read_file(
        self,
        path: bytes,
        address: int,
        length: int,
        align: int = 0,
        *,
        digest_from: int = NO_DIGEST,
        read_ahead_bytes: int = 0,
    ) -> IoResult:
        """A whole file into memory.  ENODATA where it has another length, ELOOP where it is not a plain file."""
        token, pending = self._begin()
        self._put((READ_FILE, token, path, address, length, align, digest_from, read_ahead_bytes))
        return await self._result(pending, path)

    async def write_file(
        self, temporary: bytes, path: bytes, address: int, length: int, align: int = 0, *, sync: int = 0
    ) -> IoResult:
        """Memory into a new file, which gets its name when it is complete.  EEXIST where that name is taken."""
        token, pending = self._begin()
        self._put((WRITE_FILE, token, temporary, path, address, length, align, sync))
        return await self._result(pending, path)

    async def copy(
        self, source: int, target: int, length: int, *, head_bytes: int = 0, digest_from: int = NO_DIGEST
    ) -> IoResult:
        """Memory to memory; the first `head_bytes` after all the rest.  EFAULT where a page of either vanished."""
        token, pending = self._begin()
        self._put((COPY, token, source, target, length, head_bytes, digest_from))
        return await self._result(pending)

    async def sync(self, fd: int) -> IoResult:
        """Returns once what was written to the file before is on the medium."""
        token, pending = self._begin()
        self._put((SYNC, token, fd))
        return await self._result(pending)

    async def close(self, seconds: float) -> bool:
        """Close the engine: waiting operations fail with ECANCELED, running ones have this time to end.

        True once no memory is touched any more, and every waiting caller has its answer.  False when that takes longer;
        then close it again."""
        self._submit()
        closed = await asyncio.to_thread(self._engine.close, seconds)
        if closed:
            self._settle_answers()
            self._loop.remove_reader(self._fd)
        return closed

    def _begin(self) -> tuple[int, _Pending]:
        token = self._next_token
        self._next_token += 1
        pending = self._pending[token] = _Pending(self._loop.create_future())
        return token, pending

    def _put(self, operation: Operation) -> None:
        if not self._batch:
            self._loop.call_soon(self._submit)
        self._batch.append(operation)

    def _submit(self) -> None:
        batch, self._batch = self._batch, []
        if not batch:
            return
        try:
            self._engine.submit(batch)
        except (TypeError, ValueError) as error:
            if len(batch) == 1:
                self._pending.pop(batch[0][1]).settle(error)
                return
            for operation in batch:  # one was malformed and none was taken: the others must not suffer for it
                self._batch = [operation]
                self._submit()
        except (RuntimeError, MemoryError) as error:  # closed, or no room
            for operation in batch:
                self._pending.pop(operation[1]).settle(error)

    def _settle_answers(self) -> None:
        for token, result, digest in self._engine.answers():
            self._pending.pop(token).settle((result, digest))

    async def _result(self, pending: _Pending, path: bytes | None = None) -> IoResult:
        cancellation: asyncio.CancelledError | None = None
        while pending.answer is None:
            try:
                await pending.waiter
            except asyncio.CancelledError as error:
                cancellation = error
                pending.waiter = self._loop.create_future()
        try:
            if cancellation is not None:
                raise cancellation
            if isinstance(pending.answer, Exception):
                raise pending.answer
            result, digest = pending.answer
            if result >= 0:
                return IoResult(result, digest)
            raise OSError(-result, os.strerror(-result), path)
        finally:
            del cancellation, pending  # they hold this frame
