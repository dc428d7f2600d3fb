"""Who may write to a pool in an object store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, cast

import pytest

from lmcache_core import ResourceError
from lmcache_devkit import BorrowedMemory, adapter_context
from lmcache_l2_nixl.pool_owner import RECORD_BYTES, PoolOwner, PoolRecords
from lmcache_nixl_agent.agent import Extent, NixlAgent
from lmcache_nixl_agent.flights import Transfer
from lmcache_nixl_agent.own_memory import OwnMemory
from lmcache_nixl_agent.transfers import TransferThread

LEASE_SECONDS = 1.0
OBJECT = "pool/.owner"


class Store:
    """An object store with one object of ours, and as much of a transfer thread as records use."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.memories: dict[int, OwnMemory] = {}
        """By address."""
        self.fails = False
        self.writes = 0
        self.questions = 0
        """While NIXL waits for the answer to one, no transfer goes on."""
        self.thread = cast(TransferThread, self)

    def call(self, function: Callable[[NixlAgent], Any]) -> Future[Any]:
        called: Future[Any] = Future()
        called.set_result(function(cast(NixlAgent, self)))
        return called

    async def do(self, function: Callable[[NixlAgent], Any]) -> Any:
        return self.call(function).result()

    async def move(self, transfers: Sequence[Transfer]) -> None:
        if self.fails:
            raise OSError(5, "the store does not answer")
        (transfer,) = transfers
        memory = self.memories[transfer.memory.at]
        if transfer.writes:
            self.writes += 1
            self.objects[OBJECT] = memory[0 : transfer.memory.length]
        else:
            data = self.objects[OBJECT][: transfer.memory.length]
            memory[0 : len(data)] = data  # like a store: what is too short is not an error

    def register(self, *_: Any) -> object:
        return object()

    def deregister(self, _: object) -> None: ...

    def exists(self, place: Extent) -> bool:
        self.questions += 1
        return place.name in self.objects


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    extent = OwnMemory.extent

    def known(self: OwnMemory, at: int, length: int) -> Extent:
        store.memories[self.address] = self
        return extent(self, at, length)

    monkeypatch.setattr(OwnMemory, "extent", known)
    return store


def owner(store: Store, name: str) -> PoolOwner:
    context = adapter_context(BorrowedMemory(4096), name=name)
    return PoolOwner(context, store.thread, OBJECT, f"{name}: pool", LEASE_SECONDS)


def test_records_come_back_and_go(store: Store) -> None:
    async def scene() -> None:
        records = PoolRecords(store.thread, OBJECT)
        assert await records.read() is None
        assert await records.write(b'{"a": 1}', replaces=None)
        assert len(store.objects[OBJECT]) == RECORD_BYTES
        assert await records.read() == b'{"a": 1}'
        await records.remove()
        assert await records.read() is None
        records.close()

    asyncio.run(scene())


def test_sealed_records_replace_only_their_own(store: Store) -> None:
    async def scene() -> None:
        records = PoolRecords(store.thread, OBJECT)
        assert await records.write(b"mine 1", replaces=None)
        records.sealed = True
        assert await records.write(b"mine 2", replaces=b"mine 1")
        assert not await records.write(b"mine 3", replaces=b"another's")
        assert records.lost
        assert await records.read() == b"mine 2"
        records.close()

    asyncio.run(scene())


def test_of_two_servers_the_second_is_refused_until_the_first_has_released_it(store: Store) -> None:
    first, second = owner(store, "one"), owner(store, "two")
    with pytest.raises(OSError, match="does not own it"):
        first.require()
    first.take()
    first.require()
    with pytest.raises(ResourceError, match="may be alive; start again in 1 s, or give this server an object_prefix"):
        second.take()
    with pytest.raises(OSError, match="two: pool: this server does not own it"):
        second.require()
    asyncio.run(first.give_up())
    with pytest.raises(OSError, match="does not own it"):
        first.require()
    second.take()
    second.require()
    first.close()
    second.close()


def test_a_pool_that_another_has_had_is_not_taken_back(store: Store) -> None:
    first, second = owner(store, "one"), owner(store, "two")

    async def lose() -> None:
        first.keep()
        store.objects.clear()  # the record is removed, and another server follows
        await asyncio.to_thread(second.take)
        del store.objects[OBJECT]
        while True:
            try:
                first.require()
            except OSError:
                return
            await asyncio.sleep(0.01)

    first.take()
    asyncio.run(asyncio.wait_for(lose(), 20))
    with pytest.raises(OSError, match="does not own it"):
        first.require()
    first.close()
    second.close()


def test_a_renewal_asks_nothing_that_transfers_would_wait_behind(store: Store) -> None:
    first = owner(store, "one")
    first.take()
    asked, written = store.questions, store.writes

    async def renew() -> None:
        first.keep()
        while store.writes < written + 3:
            await asyncio.sleep(0.01)
        await first.give_up()

    asyncio.run(asyncio.wait_for(renew(), 20))
    assert store.questions == asked
    first.close()


def test_a_store_that_does_not_answer_ends_no_stop(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    first = owner(store, "one")
    first.take()
    store.fails = True
    asyncio.run(first.give_up())
    assert "stays until its lease is over" in caplog.text
    first.close()


def test_something_else_under_the_records_name_is_left_alone(store: Store) -> None:
    store.objects[OBJECT] = b"a letter"
    first = owner(store, "one")
    with pytest.raises(ResourceError, match="not an owner's record"):
        first.take()
    assert store.objects[OBJECT] == b"a letter"
    first.close()
