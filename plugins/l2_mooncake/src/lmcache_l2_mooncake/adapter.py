"""The `mooncake_store` adapter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from lmcache_core import AdapterContext, BorrowedBuffer, Capability, KeyPage, ObjectKey, Outcome, ResourceError, Usage
from lmcache_l2_adapter import AsyncL2Adapter, CircuitBreaker
from lmcache_l2_mooncake.batch_calls import BatchCalls, CallSlots
from lmcache_l2_mooncake.codes import LOST, Code, MooncakeError, PassingError, deleted, error_of, not_loaded, stored
from lmcache_l2_mooncake.config import MooncakeSettings
from lmcache_l2_mooncake.link import Link
from lmcache_l2_mooncake.listing import HeaderPages, Listing
from lmcache_l2_mooncake.master import MasterAnswerError, MasterHttp, is_reachable
from lmcache_l2_mooncake.memory_check import check_for_rdma
from lmcache_l2_mooncake.store_client import Span, StoreClient, Transfer
from lmcache_object_remote import object_name
from lmcache_object_remote.second_look import SecondLook

CAPABILITIES: Final = Capability.DELETE | Capability.SHARED | Capability.ZERO_COPY | Capability.ANY_LENGTH
TRANSFERS_TOGETHER: Final = 16
"""The library moves those of one call side by side, and each call waits by asking over and over: four calls of four take
twice the CPU time of one of sixteen."""
NAMES_TOGETHER: Final = 256
FAILURES_MAX: Final = 5
"""Calls without a master take seconds each, so fewer of them are worth the wait than usual."""
OPERATION_TIMEOUT_SECONDS: Final = 20.0
"""Less than a server's `l2_timeout_seconds`, and than the library takes for a call whose master hangs."""
USAGE_SECONDS: Final = 5.0
OVERDUE_SECONDS: Final = 30.0
"""Mooncake gives a transfer up after a minute and says TRANSFER_FAIL, while the transfer itself goes on.  One that failed
after less has ended."""

Call = Callable[[StoreClient, Sequence[Transfer]], Sequence[int]]


class MooncakeAdapter(AsyncL2Adapter):
    """Objects under their names in a Mooncake Store.  What comes at the same time is one call of the library, which moves
    bytes straight between L1 and the members that hold them."""

    def __init__(
        self,
        settings: MooncakeSettings,
        context: AdapterContext,
        open_client: Callable[[], StoreClient],
        pages: HeaderPages,
        scratch: HeaderPages,
        operation_timeout_seconds: float = OPERATION_TIMEOUT_SECONDS,
    ) -> None:
        """`open_client` registers the memory of the `pages`, for listings, and of the `scratch`, too; it is called again when a
        membership is renewed."""
        self._prefix: Final = settings.key_prefix
        self._settings: Final = settings
        self._master: Final = MasterHttp(settings.master_metrics_url) if settings.master_metrics_url else None
        self.capabilities = CAPABILITIES | (Capability.LIST if self._master else Capability.NONE)
        self._open_client: Final = open_client
        self._pages: Final = pages
        self._scratch: Final = scratch
        self._usage: Usage | None = None
        self._overdue = 0
        super().__init__(
            context,
            concurrency=max(64, settings.num_workers * TRANSFERS_TOGETHER),
            operation_timeout_seconds=operation_timeout_seconds,
            breaker=CircuitBreaker(context.clock, threshold=FAILURES_MAX),
        )

    async def started(self) -> None:
        address = self._settings.master_server_addr
        self._loop = asyncio.get_running_loop()
        self._link = Link(self.context, self._open_client, partial(is_reachable, address), self.in_thread)
        transfers, names = CallSlots(self._settings.num_workers), CallSlots(1)
        self._gets = BatchCalls[Transfer, int](
            transfers, partial(self._move, lambda client, given: client.get(given)), TRANSFERS_TOGETHER
        )
        self._puts = BatchCalls[Transfer, int](
            transfers, partial(self._move, lambda client, given: client.put(given)), TRANSFERS_TOGETHER
        )
        self._lookups = BatchCalls[str, int](
            names, partial(self._ask, lambda client, given: client.exist(given)), NAMES_TOGETHER
        )
        self._removals = BatchCalls[str, int](
            names, partial(self._ask, lambda client, given: client.remove(given)), NAMES_TOGETHER
        )
        self._listing = self._master and Listing(
            self._master, self._prefix, self._pages, self._read_starts, self.context.clock
        )
        self._second_look = SecondLook(self._read_anew, self.in_thread)
        await self._link.start()
        self._measuring = self._loop.create_task(self._measure(self._master)) if self._master else None

    async def stopped(self) -> None:
        if self._measuring is not None:
            self._measuring.cancel()
        await (
            self._link.stop()
        )  # first: a master whose HTTP hangs is waited for, and the store is to be left all the same
        if self._measuring is not None:
            await asyncio.wait((self._measuring,))

    async def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        return stored(await self._puts.call(self._transfer(key, buffer)))

    async def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        answer = await self._gets.call(self._transfer(key, buffer))
        if answer == Code.INVALID_PARAMS:
            answer = await self._length_of(key)
        if answer < 0:
            return not_loaded(answer)
        if buffer.takes(answer):
            return Outcome.DONE
        self._second_look.was_loaded_in_vain(key, buffer)
        return Outcome.DAMAGED

    async def contains(self, key: ObjectKey) -> bool:
        answer = await self._lookups.call(object_name(self._prefix, key))
        if answer < 0:
            if answer == Code.OBJECT_NOT_FOUND:
                return False
            raise error_of(answer, "looking an object up")
        return answer == 1

    async def delete(self, key: ObjectKey) -> Outcome:
        return deleted(await self._removals.call(object_name(self._prefix, key)))

    async def discard(self, key: ObjectKey, outcome: Outcome) -> bool:
        """What is damaged is removed, unless it turns out to be whole when it is read again."""
        if outcome is Outcome.DAMAGED and await self._second_look.finds_whole(key):
            return True
        return await super().discard(key, outcome)

    def is_transient(self, error: Exception) -> bool:
        """A lost master is not: the library has tried again for seconds before it says so."""
        return isinstance(error, PassingError)

    def usage(self) -> Usage | None:
        """Of the whole store, as its master last said; None without `master_metrics_url`."""
        return self._usage

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        return self._listing.page(cursor, limit) if self._listing else KeyPage((), None)

    def counters(self) -> Mapping[str, int]:
        return {"memberships_renewed": self._link.renewals, "transfers_overdue": self._overdue}

    def _transfer(self, key: ObjectKey, buffer: BorrowedBuffer) -> Transfer:
        return Transfer(object_name(self._prefix, key), buffer.address, buffer.length)

    async def _read_anew(self, key: ObjectKey) -> memoryview | None:
        with self._link.borrow() as client:
            if not client.reads_ranges:
                return None
            whole: memoryview | None = await self.in_thread(self._whole, client, object_name(self._prefix, key))
        return whole

    def _whole(self, client: StoreClient, name: str) -> memoryview | None:
        """In a thread, one at a time.  Raises MooncakeError where the master does not answer, which says nothing of an
        object."""
        size = client.size(name)
        whole = bytearray(max(size, 0))
        for start in range(0, size, self._scratch.length):
            length = min(self._scratch.length, size - start)
            answer = client.part(Transfer(name, self._scratch.address, length), start)
            if answer != length:
                _check_known(answer)
                return None
            whole[start : start + length] = self._scratch.start(length)
        _check_known(size)
        return memoryview(whole) if size > 0 else None

    async def _length_of(self, key: ObjectKey) -> int:
        """Of an object that did not fit where it was to be loaded, or a code.  Raises MooncakeError where it should have."""
        with self._link.borrow() as client:
            length: int = await self.in_thread(client.size, object_name(self._prefix, key))
        return length

    async def _move(self, call: Call, transfers: Sequence[Transfer]) -> Sequence[int]:
        """Ends when no byte is moved any more."""
        closed = self._link.closed
        clock = self.context.clock
        with self._link.borrow() as client:
            began = clock.monotonic()
            answers = await self.in_thread(call, client, transfers)
        self._heard(answers)
        if Code.TRANSFER_FAIL in answers and clock.monotonic() - began > OVERDUE_SECONDS:
            # Only the end of the client ends it for certain.  Until then these buffers stay borrowed, and the time-out answers.
            self._overdue += 1
            self._link.give_up("a transfer was abandoned, and may still run")
            await closed.wait()
        return answers

    async def _ask(
        self, call: Callable[[StoreClient, Sequence[str]], Sequence[int]], names: Sequence[str]
    ) -> Sequence[int]:
        with self._link.borrow() as client:
            answers = await self.in_thread(call, client, names)
        self._heard(answers)
        return answers

    def _heard(self, answers: Sequence[int]) -> None:
        if any(answer in LOST for answer in answers):
            self._link.lost()
        else:
            self._link.answered()

    def _read_starts(self, transfers: Sequence[Transfer]) -> Sequence[int]:
        """From another thread: header pages, for a listing.  Raises MooncakeError."""
        reading = asyncio.run_coroutine_threadsafe(self._starts(transfers), self._loop)
        try:
            return reading.result(OVERDUE_SECONDS)
        except TimeoutError:
            raise MooncakeError(
                f"header pages were not read within {OVERDUE_SECONDS:g} s; ask for the page again"
            ) from None

    async def _starts(self, transfers: Sequence[Transfer]) -> Sequence[int]:
        with self._link.borrow() as client:
            if not client.reads_ranges:
                raise MooncakeError(
                    "the installed Mooncake cannot read the beginnings of objects, so none can be listed"
                )
            answers = await self.in_thread(client.starts, transfers)
        self._heard(answers)
        return answers

    async def _measure(self, master: MasterHttp) -> None:
        while True:
            try:
                self._usage = await self.in_thread(master.usage)
            except MasterAnswerError as error:
                self._usage = None
                self.context.logger.debug("mooncake usage is not known adapter=%s: %s", self.context.name, error)
            await asyncio.sleep(USAGE_SECONDS)


def _check_known(answer: int) -> None:
    if answer in LOST:
        raise error_of(answer, "reading an object again")


def open_mooncake(settings: MooncakeSettings, context: AdapterContext) -> MooncakeAdapter:
    """Join the store with L1's memory.  Raises ConfigError where L1 does not suit the protocol, ResourceError where the library
    or the master is not available."""
    needs_memory = settings.protocol == "rdma"
    if needs_memory:
        check_for_rdma(context.name, context.regions)
    if not is_reachable(settings.master_server_addr):
        raise ResourceError(
            f"{context.name}: nothing listens at {settings.master_server_addr}, where Mooncake's master is to be; start "
            "mooncake_master there, or correct master_server_addr"
        )
    pages, scratch = HeaderPages(), HeaderPages()
    memory = [Span(region.address, region.length) for region in context.regions]
    memory += [Span(each.address, each.length) for each in (pages, scratch)]
    open_client = partial(
        StoreClient.open, settings.for_setup(), memory, needs_memory=needs_memory, logger=context.logger
    )
    return MooncakeAdapter(settings, context, open_client, pages, scratch)
