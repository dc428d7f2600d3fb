"""What failed to be written or cleared does not come back."""

from __future__ import annotations

import asyncio
import logging
from itertools import repeat

import pytest

from libs.object_slots.tests.simulated import Disk, DiskMedium, Objects, geometry_of, volume_on
from lmcache_core import ObjectHeader, inspect
from lmcache_object_slots.recovery import Recovery
from lmcache_object_slots.slot_keeper import SlotKeeper
from lmcache_object_slots.slot_state import SlotState

OBJECTS = Objects(3)
FIRST, SECOND, THIRD = (OBJECTS.key(number).object_id for number in range(3))


async def at_once() -> None:
    """In the place of `begin_changes`."""


async def keeper_of(disk: Disk) -> SlotKeeper:
    volume = volume_on(disk)
    index, _ = volume.index(verify=True)

    async def swept_to(slot: int) -> None:
        volume.swept_to(slot)

    keeper = SlotKeeper(DiskMedium(disk, repeat(3)), index, at_once)
    await Recovery(keeper, volume.swept, volume.wipes, swept_to, logging.getLogger("tests"), "slots").run()
    return keeper


async def fail_to_store(keeper: SlotKeeper, disk: Disk, number: int) -> None:
    """Its header is there all the same."""
    disk.fault_in = 1
    with pytest.raises(OSError, match="lost all the same"):
        await keeper.put(OBJECTS.key(number).object_id, OBJECTS[number])


def test_a_deletion_is_not_reported_while_another_store_still_clears_the_slot() -> None:
    async def run() -> None:
        disk = Disk(geometry_of(1))
        keeper = await keeper_of(disk)
        await fail_to_store(keeper, disk, 0)
        storing = asyncio.create_task(keeper.put(SECOND, OBJECTS[1]))
        await asyncio.sleep(0)
        assert keeper.index.state(0) is SlotState.BUSY
        assert isinstance(inspect(disk.page(0)), ObjectHeader), "a process that starts now finds the first"
        with pytest.raises(BlockingIOError, match="is being cleared"):
            await keeper.remove(FIRST)
        assert await storing
        assert not await keeper.remove(FIRST)
        assert keeper.index.find(SECOND) is not None
        assert (await keeper_of(disk)).index.find(FIRST) is None

    asyncio.run(run())


class Stuck(DiskMedium):
    """Some slots cannot be cleared."""

    def __init__(self, disk: Disk, *slots: int) -> None:
        super().__init__(disk, repeat(1))
        self.stuck = set(slots)

    async def clear_header(self, slot: int) -> None:
        if slot in self.stuck:
            raise OSError("the slot cannot be written")
        await super().clear_header(slot)


def test_a_slot_that_another_store_failed_to_clear_is_cleared_for_the_first() -> None:
    async def run() -> None:
        disk = Disk(geometry_of(1))
        keeper = await keeper_of(disk)
        await fail_to_store(keeper, disk, 0)
        keeper.medium = medium = Stuck(disk, 0)
        for _ in range(2):
            with pytest.raises(OSError, match="cannot be written"):
                await keeper.put(SECOND, OBJECTS[1])
        medium.stuck = set()
        assert not await keeper.remove(SECOND)
        assert not await keeper.remove(FIRST)
        assert not any(disk.page(0)), "the first was reported as deleted"

    asyncio.run(run())


def test_at_the_end_one_slot_that_cannot_be_cleared_keeps_no_other_from_it() -> None:
    async def run() -> None:
        disk = Disk(geometry_of(3))
        keeper = await keeper_of(disk)
        for number in range(3):
            await fail_to_store(keeper, disk, number)
        keeper.medium = Stuck(disk, 0)
        await keeper.empty_soiled()
        states = [keeper.index.state(slot) for slot in range(3)]
        assert states == [SlotState.SOILED, SlotState.FREE, SlotState.FREE]

    asyncio.run(run())


def test_slots_that_were_cleared_are_suspected_no_more() -> None:
    async def run() -> None:
        disk = Disk(geometry_of(2))
        keeper = await keeper_of(disk)
        for number in (0, 1):
            await fail_to_store(keeper, disk, number)
        assert await keeper.put(THIRD, OBJECTS[2])
        await keeper.empty_soiled()
        assert len(keeper.suspects) == 0

    asyncio.run(run())
