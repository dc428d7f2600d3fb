"""Whenever the process dies while devices are opened together, all of them are found whole afterwards."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key, payload_of
from lmcache_l2_dax.stripe_members import StripedDevice, StripedVolume, open_striped_volume
from lmcache_l2_dax.stripes import striped_geometry
from lmcache_object_slots import VolumeIdentity, meta_bytes_for

DEVICES = 3
SLOT_BYTES = 8192
SLOTS = 4 * DEVICES
DEVICE_BYTES = meta_bytes_for(SLOTS) + 4 * SLOT_BYTES
GEOMETRY = striped_geometry(DEVICE_BYTES, DEVICES, SLOT_BYTES, meta_bytes_for(SLOTS))


WRITES = 3 * (DEVICES - 1) + 1
"""Of each start."""


class KilledError(Exception):
    pass


class Process:
    """Writes so often, the last time in part."""

    def __init__(self, writes_left: int | None = None, torn_share: float = 0.5) -> None:
        self.writes_left = writes_left
        self.torn_share = torn_share


class Region:
    """A `MetaRegion` of bytes that outlive every process."""

    def __init__(self, data: bytearray, process: Process) -> None:
        self._data = data
        self._process = process

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self._data[offset : offset + length])

    def write(self, offset: int, data: bytes) -> None:
        if self._process.writes_left is not None:
            if self._process.writes_left == 0:
                torn = int(len(data) * self._process.torn_share)
                self._data[offset : offset + torn] = data[:torn]
                raise KilledError
            self._process.writes_left -= 1
        self._data[offset : offset + len(data)] = data

    def sync(self) -> None:
        pass


def is_blank(data: bytearray) -> bool:
    return not any(data)


def opened(disks: list[bytearray], writes: int | None = None, torn_share: float = 0.5) -> StripedVolume:
    process = Process(writes, torn_share)
    regions = [Region(data, process) for data in disks]
    devices = [
        StripedDevice(f"device {number}", region, partial(is_blank, data))
        for number, (region, data) in enumerate(zip(regions, disks, strict=True))
    ]
    identity = VolumeIdentity("device 0", "tests", 1, GEOMETRY)
    return open_striped_volume(devices, identity, overwrite=False)


def put_everywhere(disks: list[bytearray]) -> None:
    """One object on each device."""
    memory = BorrowedMemory(2**16)
    for number, disk in enumerate(disks):
        run = bytes(memory.sealed(object_key(number), payload_of(number, 1000)).view)
        at = GEOMETRY.run_at(1)
        disk[at : at + len(run)] = run


def objects(disks: list[bytearray]) -> list[bytes]:
    return [bytes(disk[GEOMETRY.run_at(1) :]) for disk in disks]


@pytest.fixture
def disks() -> list[bytearray]:
    return in_use()


def in_use() -> list[bytearray]:
    disks = [bytearray(DEVICE_BYTES) for _ in range(DEVICES)]
    opened(disks)
    put_everywhere(disks)
    return disks


@pytest.mark.parametrize("writes", range(WRITES))
@pytest.mark.parametrize("then", range(WRITES))
def test_a_start_that_is_killed_costs_nothing(disks: list[bytearray], writes: int, then: int) -> None:
    before = objects(disks)
    for killed_after in (writes, then):
        try:
            opened(disks, killed_after)
        except KilledError:
            pass
        else:
            raise AssertionError("it has not written all")
    assert opened(disks)[1:] == ([], [])
    assert objects(disks) == before


lives = st.tuples(st.integers(0, WRITES + 1), st.sampled_from([0.0, 0.01, 0.02, 0.03, 0.5, 0.99, 1.0]))
"""Writes until it dies, the last one after the start where the start needs no more; and how much of the last one is done."""


@given(st.lists(lives, max_size=8))
@settings(deadline=None, max_examples=300)
def test_however_often_and_wherever_it_is_killed_nothing_is_stale(killed: list[tuple[int, float]]) -> None:
    disks = in_use()
    before = objects(disks)
    for writes, torn_share in killed:
        try:
            volume, new, stale = opened(disks, writes, torn_share)
            assert (new, stale) == ([], [])
            volume.begin_changes()
        except KilledError:
            pass
    assert opened(disks)[1:] == ([], [])
    assert objects(disks) == before


@pytest.mark.parametrize("away", range(DEVICES))
@pytest.mark.parametrize("writes", range(WRITES))
def test_one_that_was_away_is_emptied_though_that_is_killed(disks: list[bytearray], away: int, writes: int) -> None:
    before, earlier = objects(disks), bytes(disks[away])
    opened(disks)
    disks[away][:] = earlier
    try:
        opened(disks, writes)
    except KilledError:
        opened(disks)
    there = objects(disks)
    assert not any(there[away][:4096])
    assert [there[number] == before[number] for number in range(DEVICES)] == [
        number != away for number in range(DEVICES)
    ]


def test_devices_that_stay_together_are_never_stale(disks: list[bytearray]) -> None:
    for start in range(2, 6):
        volume, new, stale = opened(disks)
        assert (new, stale, volume.generation) == ([], [], start)
