"""Calls that come together are one, and each has its own result."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_l2_mooncake.batch_calls import BatchCalls, CallSlots


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
    batch_min=st.integers(1, 4),
    cancelled=st.sets(st.integers(0, 59)),
)
def test_every_item_is_in_one_batch_and_gets_its_result(
    items: list[int], slots: int, batch_max: int, batch_min: int, cancelled: set[int]
) -> None:
    async def main() -> None:
        recorded = Recorded()
        calls = BatchCalls[int, int](CallSlots(slots), recorded, batch_max, batch_min)
        tasks = [asyncio.create_task(calls.call(item)) for item in items]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        begun = sum(map(len, recorded.batches))
        for at in cancelled & set(range(len(items))):
            tasks[at].cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        in_use = [task for task in tasks if not task.done()]
        assert len(in_use) >= begun  # what a batch has is in use until the batch has ended
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


def test_few_are_not_shared_out() -> None:
    async def main() -> None:
        recorded = Recorded()
        recorded.go_on.set()
        calls = BatchCalls[int, int](CallSlots(4), recorded, batch_max=16, batch_min=4)
        await asyncio.gather(*map(calls.call, range(20, 30)))
        assert [len(batch) for batch in recorded.batches] == [4, 4, 2]
        recorded.batches.clear()
        await asyncio.gather(*map(calls.call, range(20, 100)))
        assert max(map(len, recorded.batches)) == 16

    asyncio.run(main())


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


def test_a_fault_is_everybodys_of_its_batch_and_nobody_elses() -> None:
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
