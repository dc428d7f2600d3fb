"""Calls that come together are one, and each has its own result."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_l2_mooncake.batch_calls import BatchCalls, CallSlots
from lmcache_l2_mooncake.store_client import StoreClient, Transfer

TIMEOUT_SECONDS = 20.0


class Recorded:
    """Answers each number with its double, when it is let."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.running = 0
        self.most = 0
        self.go_on = asyncio.Event()

    async def __call__(self, items: Sequence[int]) -> Sequence[int]:
        self.batches.append(list(items))
        self.running += 1
        self.most = max(self.most, self.running)
        await self.go_on.wait()
        self.running -= 1
        if 13 in items:
            raise ValueError("thirteen")
        return [2 * item for item in items]


@settings(max_examples=60, deadline=None)
@given(
    items=st.lists(st.integers(100, 999), min_size=1, max_size=60),
    slots=st.integers(1, 5),
    batch_max=st.integers(1, 9),
    cancelled=st.sets(st.integers(0, 59)),
)
def test_every_item_is_in_one_batch_and_gets_its_result(
    items: list[int], slots: int, batch_max: int, cancelled: set[int]
) -> None:
    async def main() -> None:
        recorded = Recorded()
        calls = BatchCalls[int, int](CallSlots(slots), recorded, batch_max)
        tasks = [asyncio.create_task(calls.call(item)) for item in items]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        started = sum(map(len, recorded.batches))
        for at in cancelled & set(range(len(items))):
            tasks[at].cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        in_use = [task for task in tasks if not task.done()]
        assert len(in_use) >= started  # what a batch has is in use until the batch has ended
        recorded.go_on.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for at, (item, result) in enumerate(zip(items, results, strict=True)):
            assert isinstance(result, asyncio.CancelledError) if at in cancelled else result == 2 * item
        assert recorded.most <= slots
        assert max(map(len, recorded.batches)) <= batch_max
        taken = sorted(item for batch in recorded.batches for item in batch)
        assert len(taken) <= len(items)
        assert len(taken) >= len(items) - len(cancelled)

    asyncio.run(main())


def test_few_are_one_call_and_full_ones_run_side_by_side() -> None:
    async def main() -> None:
        recorded = Recorded()
        recorded.go_on.set()
        calls = BatchCalls[int, int](CallSlots(4), recorded, batch_max=16)
        await asyncio.gather(*map(calls.call, range(20, 30)))
        assert [len(batch) for batch in recorded.batches] == [10]
        recorded.go_on.clear()
        recorded.batches.clear()
        many = [asyncio.create_task(calls.call(item)) for item in range(20, 60)]
        await _settled()
        assert [len(batch) for batch in recorded.batches] == [16, 16], "the last eight are fewer than a call"
        recorded.go_on.set()
        await asyncio.gather(*many)
        assert [len(batch) for batch in recorded.batches] == [16, 16, 8]

    asyncio.run(main())


def test_what_comes_while_a_call_runs_is_the_next_one() -> None:
    async def main() -> None:
        recorded = Recorded()
        calls = BatchCalls[int, int](CallSlots(4), recorded, batch_max=16, beside_seconds=TIMEOUT_SECONDS)
        started = []
        for item in range(20, 30):
            started.append(asyncio.create_task(calls.call(item)))
            await _settled()
        recorded.go_on.set()
        await asyncio.gather(*started)
        assert [len(batch) for batch in recorded.batches] == [1, 9]

    asyncio.run(main())


def test_no_other_waits_for_a_call_that_hangs() -> None:
    async def main() -> None:
        recorded = Recorded()
        calls = BatchCalls[int, int](CallSlots(2), recorded, batch_max=16, beside_seconds=0.01)
        hanging = asyncio.create_task(calls.call(20))
        await _settled()
        late = [asyncio.create_task(calls.call(item)) for item in (21, 22)]
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while len(recorded.batches) < 2:
                await asyncio.sleep(0.001)
        assert recorded.batches == [[20], [21, 22]]
        recorded.go_on.set()
        await asyncio.gather(hanging, *late)

    asyncio.run(main())


def test_another_queue_does_not_wait() -> None:
    async def main() -> None:
        slots = CallSlots(2)
        loads, stores = Recorded(), Recorded()
        loading = BatchCalls[int, int](slots, loads, 16, TIMEOUT_SECONDS)
        storing = BatchCalls[int, int](slots, stores, 16, TIMEOUT_SECONDS)
        stored = asyncio.create_task(storing.call(30))
        await _settled()
        loads.go_on.set()
        assert await loading.call(31) == 62
        stores.go_on.set()
        assert await stored == 60

    asyncio.run(main())


async def _settled() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def test_earlier_lanes_go_first() -> None:
    async def main() -> None:
        slots = CallSlots(1)
        loads, stores = Recorded(), Recorded()
        first, second = BatchCalls[int, int](slots, loads, 2), BatchCalls[int, int](slots, stores, 2)
        order: list[int] = []

        async def one(calls: BatchCalls[int, int], item: int) -> None:
            order.append(await calls.call(item))

        tasks = [asyncio.create_task(one(second, item)) for item in (1, 2, 3, 4)]
        tasks += [asyncio.create_task(one(first, item)) for item in (5, 6, 7, 8)]
        loads.go_on.set()
        stores.go_on.set()
        await asyncio.gather(*tasks)
        assert order == [10, 12, 14, 16, 2, 4, 6, 8]

    asyncio.run(main())


def test_a_fault_fails_its_whole_batch_and_no_other() -> None:
    async def main() -> None:
        recorded = Recorded()
        recorded.go_on.set()
        calls = BatchCalls[int, int](CallSlots(1), recorded, 2)
        results = await asyncio.gather(*map(calls.call, (12, 13, 14, 15)), return_exceptions=True)
        assert [type(result) for result in results] == [ValueError, ValueError, int, int]
        assert await calls.call(5) == 10  # the slot is free again

    asyncio.run(main())


def test_a_result_too_few_is_a_fault() -> None:
    async def short(items: Sequence[int]) -> Sequence[int]:
        return items[1:]

    async def main() -> None:
        with pytest.raises(ValueError, match="shorter"):
            await BatchCalls[int, int](CallSlots(1), short, 4).call(3)

    asyncio.run(main())


def test_one_call_of_the_library_never_has_an_object_twice() -> None:
    class Store:
        def __init__(self) -> None:
            self.calls: list[list[str]] = []

        def batch_get_into(self, names: list[str], addresses: list[int], lengths: list[int]) -> list[int]:
            self.calls.append(names)
            return addresses

    store = Store()
    asked = [Transfer(name, address, 1) for address, name in enumerate("abacab")]
    assert StoreClient(store).get(asked) == [0, 1, 2, 3, 4, 5]
    assert store.calls == [["a", "b", "c"], ["a", "b"], ["a"]]
    assert StoreClient(store).get([]) == []
