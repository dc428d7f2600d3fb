"""The whole adapter on a medium that fails in places."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pytest

from libs.object_slots.tests.simulated import Disk, DiskMedium, Objects, geometry_of, volume_on
from lmcache_core import Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context
from lmcache_devkit.l2_driver import L2Driver
from lmcache_object_slots import SlotAdapter, Volume

OBJECTS = Objects(6)


@pytest.fixture
def disk() -> Disk:
    return Disk(geometry_of(12))


@pytest.fixture
def driver(disk: Disk) -> Iterator[L2Driver]:
    driver = L2Driver(opened(disk, []))
    assert driver.store(*((OBJECTS.key(n), OBJECTS[n]) for n in range(6))) == (Outcome.DONE,) * 6
    yield driver
    driver.close(10)


def opened(disk: Disk, released: list[str]) -> SlotAdapter:
    return SlotAdapter(
        adapter_context(BorrowedMemory(2**20)), DiskMedium(disk, repeat(0)), concurrency=4,
        release=lambda: released.append("released"), volume=volume_on(disk),
    )  # fmt: skip


def test_a_slot_that_cannot_be_read_does_not_end_the_listing(disk: Disk, driver: L2Driver) -> None:
    disk.broken = {0, 3}
    assert len(driver.keys(4)) == 4
    assert len(driver.keys(100)) == 4
    page = driver.adapter.list_keys(None, 100)
    sizes = {OBJECTS.key(number): OBJECTS[number].length for number in range(6)}
    assert page.sizes == tuple(sizes[key] for key in page.keys)


def test_a_medium_that_cannot_be_read_at_all_does_not_end_a_listing(disk: Disk, driver: L2Driver) -> None:
    disk.broken = set(range(12))
    with pytest.raises(OSError, match="bad sector"):
        driver.keys(4)


def test_what_it_took_over_is_released_where_it_cannot_begin(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def index(self: Volume, **_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(Volume, "index", index)
    released: list[str] = []
    with pytest.raises(MemoryError):
        opened(disk, released)
    assert released == ["released"]
