"""A medium that cannot be read in places, or for a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import repeat

import pytest

from libs.object_slots.tests.simulated import (
    Disk,
    DiskMedium,
    KilledError,
    Objects,
    geometry_of,
    in_this_thread,
    volume_on,
)
from lmcache_object_slots import recovery, sweep
from lmcache_object_slots.recovery import Recovery
from lmcache_object_slots.slot_keeper import SlotKeeper
from lmcache_object_slots.slot_state import SlotState
from lmcache_object_slots.volume_keeper import VolumeKeeper

SLOTS = 40
OBJECTS = Objects(30)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "PAUSE_SECONDS", 0.001)


async def recovered(disk: Disk, store: int = 0, neighbours: int = 1) -> SlotKeeper:
    """The keeper of a process that has recovered, and then stored that number of objects."""
    volume = volume_on(disk)
    index, exact = volume.index(verify=False)
    volume_keeper = VolumeKeeper(volume, index, in_this_thread, exact=exact)
    keeper = SlotKeeper(DiskMedium(disk, repeat(1), neighbours), index, volume_keeper.begin_changes)
    log = logging.getLogger("tests")
    await Recovery(keeper, volume.swept, volume.wipes, volume_keeper.swept_to, log, "slots").run()
    for number in range(store):
        assert await keeper.put(OBJECTS.key(number).object_id, OBJECTS[number])
    return keeper


@pytest.mark.parametrize("neighbours", [1, 8])
def test_slots_that_cannot_be_read_cost_the_others_nothing(neighbours: int) -> None:
    disk = Disk(geometry_of(SLOTS))
    asyncio.run(recovered(disk, store=30))
    disk.broken = {3, 17}
    index = asyncio.run(recovered(disk, neighbours=neighbours)).index
    assert len(index) == 28
    assert index.slots_in(SlotState.WITHHELD) == 2
    disk.broken = set()
    assert len(asyncio.run(recovered(disk)).index) == 30, "the next start looks again"


def test_a_medium_that_comes_back_is_recovered() -> None:
    disk = Disk(geometry_of(SLOTS))
    asyncio.run(recovered(disk, store=30))
    disk.broken = set(range(SLOTS))

    async def come_back() -> None:
        await asyncio.sleep(0.2)
        disk.broken = set()

    async def both() -> int:
        keeper, _ = await asyncio.gather(recovered(disk), come_back())
        return len(keeper.index)

    assert asyncio.run(both()) == 30


class Repaired(DiskMedium):
    """All can be read again when this slot is; then a slot that could not be gets another object."""

    when = 24
    lost, new = 1, 29
    keeper: SlotKeeper | None = None

    async def read_headers(self, slots: Sequence[int]) -> Sequence[bytes]:
        if self.when in slots and self._disk.broken:
            self._disk.broken = set()
            assert self.keeper is not None
            assert await self.keeper.remove(OBJECTS.key(self.lost).object_id)
            assert await self.keeper.put(OBJECTS.key(self.new).object_id, OBJECTS[self.new])
        return await super().read_headers(slots)


def test_a_slot_that_was_given_away_meanwhile_is_not_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "WINDOW", 4)
    monkeypatch.setattr(recovery, "ATTEMPTS", 1)
    disk = Disk(geometry_of(SLOTS))
    volume_on(disk).write_checkpoint(asyncio.run(recovered(disk, store=25)).index, exact=False)
    volume = volume_on(disk)
    index, exact = volume.index(verify=True)
    disk.broken = {Repaired.lost}

    async def run() -> None:
        volume_keeper = VolumeKeeper(volume, index, in_this_thread, exact=exact)
        medium = Repaired(disk, repeat(1))
        medium.keeper = keeper = SlotKeeper(medium, index, volume_keeper.begin_changes)
        log = logging.getLogger("tests")
        await Recovery(keeper, volume.swept, volume.wipes, volume_keeper.swept_to, log, "slots").run()

    asyncio.run(run())
    place = index.find(OBJECTS.key(Repaired.new).object_id)
    assert place is not None
    assert place.slot == Repaired.lost
    assert index.slots_in(SlotState.WITHHELD) == 0


@pytest.mark.parametrize("writes", range(0, 40, 3))
def test_forgetting_that_is_killed_goes_on_where_it_was(writes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "SWEEP", 8)
    disk = Disk(geometry_of(SLOTS))
    asyncio.run(recovered(disk, store=20))
    volume_on(disk).forget()
    disk.writes_left = writes
    try:
        keeper = asyncio.run(recovered(disk))
    except KilledError:
        disk.revive()
        keeper = asyncio.run(recovered(disk))
    assert len(keeper.index) == 0
    assert keeper.index.slots_in(SlotState.FREE) + keeper.index.slots_in(SlotState.SOILED) == SLOTS


@pytest.mark.parametrize("neighbours", [1, 8])
def test_forgetting_goes_on_past_slots_that_cannot_be_read_or_cleared(
    neighbours: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sweep, "SWEEP", 8)
    monkeypatch.setattr(sweep, "WINDOW", 4)
    disk = Disk(geometry_of(SLOTS))
    asyncio.run(recovered(disk, store=30))
    volume_on(disk).forget()
    disk.broken, disk.stuck = {3, 39}, {17}
    keeper = asyncio.run(asyncio.wait_for(recovered(disk, neighbours=neighbours), 30))
    assert len(keeper.index) == 0
    assert [slot for slot in range(SLOTS) if keeper.index.state(slot) is SlotState.WITHHELD] == [3, 17, 39]
    assert keeper.index.slots_in(SlotState.FREE) == SLOTS - 3
    assert keeper.counts["foreign"] == 0
    assert "slots=1 first=3" in caplog.text
    assert "slots=1 first=17" in caplog.text
    assert not any(disk.page(slot).strip(b"\0") for slot in set(range(SLOTS)) - {3, 17, 39})


def test_a_medium_that_is_gone_is_not_swept_past() -> None:
    disk = Disk(geometry_of(SLOTS))
    asyncio.run(recovered(disk, store=30))
    volume_on(disk).forget()
    disk.broken = set(range(SLOTS))

    async def come_back() -> None:
        await asyncio.sleep(0.2)
        disk.broken = set()

    async def both() -> SlotKeeper:
        keeper, _ = await asyncio.gather(recovered(disk), come_back())
        return keeper

    assert asyncio.run(both()).index.slots_in(SlotState.FREE) == SLOTS


@pytest.mark.parametrize("forgets", [False, True])
def test_slots_of_another_format_version_make_room_and_foreign_ones_do_not(forgets: bool) -> None:
    disk = Disk(geometry_of(SLOTS))
    asyncio.run(recovered(disk, store=30))
    for slot in range(10):
        at = disk.geometry.run_at(slot)
        disk.bytes[at + 8 : at + 10] = (2).to_bytes(2, "little")
    at = disk.geometry.run_at(10)
    disk.bytes[at : at + 11] = b"Dear diary,"
    if forgets:
        volume_on(disk).forget()
    keeper = asyncio.run(recovered(disk))
    assert len(keeper.index) == (0 if forgets else 19)
    assert keeper.counts["other_version"] == (0 if forgets else 10)
    assert [slot for slot in range(SLOTS) if keeper.index.state(slot) is SlotState.WITHHELD] == [10]

    async def store_all() -> list[bool]:
        return [await keeper.put(OBJECTS.key(number).object_id, OBJECTS[number]) for number in range(30)]

    assert all(asyncio.run(store_all()))
    assert len(keeper.index) == 30
