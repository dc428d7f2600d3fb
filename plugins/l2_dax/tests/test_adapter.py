"""What outlives the adapter, what is refused, and what happens when memory goes away."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmcache_core import (
    HEADER_BYTES,
    Capability,
    CompositeLayout,
    L2Adapter,
    ObjectLayout,
    Outcome,
    ResourceError,
    check,
    joined_layout,
)
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key, payload_of
from lmcache_devkit.l2_driver import L2Driver
from lmcache_l2_dax.adapter import open_dax
from lmcache_l2_dax.config import DaxSettings
from lmcache_object_slots import SlotAdapter

DONE, MISSING, FAILED = Outcome.DONE, Outcome.MISSING, Outcome.FAILED
MIB = 2**20
SLOT_BYTES = 128 * 2**10
DEVICE_BYTES = 4 * MIB
PAYLOAD_BYTES = 100_000

Open = Callable[..., L2Driver]


@pytest.fixture
def memory() -> BorrowedMemory:
    return BorrowedMemory(16 * MIB)


@pytest.fixture
def devices(memory_folder: Path) -> list[Path]:
    return [make(memory_folder / f"device{number}") for number in range(3)]


@pytest.fixture
def open_on(memory: BorrowedMemory) -> Iterator[Open]:
    """`open_on(paths, persist_enabled=True, ...)`; the test's end closes what it opened."""
    opened: list[L2Driver] = []

    def open_on(paths: list[Path], **settings: Any) -> L2Driver:
        given = {"device_path": paths, "max_dax_size_gb": DEVICE_BYTES / 2**30, "slot_bytes": SLOT_BYTES, **settings}
        adapter: L2Adapter = open_dax(DaxSettings.model_validate(given), adapter_context(memory, name="dax"))
        opened.append(L2Driver(adapter))
        return opened[-1]

    yield open_on
    for driver in opened:
        driver.close(10)


def make(path: Path) -> Path:
    path.touch()
    return path


def put(driver: L2Driver, memory: BorrowedMemory, numbers: range) -> None:
    items = [
        (object_key(number), memory.sealed(object_key(number), payload_of(number, PAYLOAD_BYTES))) for number in numbers
    ]
    assert driver.store(*items) == (DONE,) * len(items)


def loaded(driver: L2Driver, memory: BorrowedMemory, number: int) -> Outcome:
    """Fails where it is DONE and another's."""
    key, buffer = object_key(number), memory.lend(HEADER_BYTES + PAYLOAD_BYTES)
    (outcome,) = driver.load((key, buffer))
    if outcome is DONE:
        assert check(buffer.view, key).outcome is DONE
        assert buffer.view[HEADER_BYTES:] == payload_of(number, PAYLOAD_BYTES)
    return outcome


@pytest.mark.parametrize("count", [1, 3])
def test_persistent_objects_are_found_again(
    devices: list[Path], open_on: Open, memory: BorrowedMemory, count: int
) -> None:
    first = open_on(devices[:count], persist_enabled=True)
    put(first, memory, range(20))
    assert Capability.DURABLE in first.adapter.capabilities
    first.close(10)
    second = open_on(devices[:count], persist_enabled=True)
    assert [loaded(second, memory, number) for number in range(21)] == [DONE] * 20 + [MISSING]
    usage = second.adapter.usage()
    assert usage is not None
    assert (usage.objects, usage.used_bytes) == (20, 20 * (HEADER_BYTES + PAYLOAD_BYTES))


def test_volatile_objects_are_not_found_by_the_next_adapter(
    devices: list[Path], open_on: Open, memory: BorrowedMemory
) -> None:
    """Not by a persistent adapter either, though their headers are still on the device."""
    first = open_on(devices[:1])
    put(first, memory, range(5))
    assert Capability.DURABLE not in first.adapter.capabilities
    first.close(10)
    for persist_enabled in (False, True):
        driver = open_on(devices[:1], persist_enabled=persist_enabled)
        assert [loaded(driver, memory, number) for number in range(5)] == [MISSING] * 5
        assert driver.keys(10) == []
        driver.close(10)


def test_slots_are_dealt_to_all_devices(devices: list[Path], open_on: Open, memory: BorrowedMemory) -> None:
    driver = open_on(devices)
    put(driver, memory, range(9))
    driver.close(10)
    for path in devices:
        objects = path.read_bytes().count(b"LMKVOBJ1")
        assert objects == 3, f"{objects} of 9 objects are on {path.name}"


def test_what_holds_something_else_is_refused_and_left_as_it_is(
    devices: list[Path], open_on: Open, memory: BorrowedMemory
) -> None:
    foreign = os.urandom(DEVICE_BYTES)
    for place in (0, 1):
        devices[place].write_bytes(foreign)
        with pytest.raises(ResourceError, match=rf"device{place}' is not empty.*left as it is.*overwrite_device"):
            open_on(devices[:2])
        assert devices[place].read_bytes() == foreign
        assert not any(devices[1 - place].read_bytes()), "nothing was written to the other one"
        devices[place].write_bytes(b"")
    devices[1].write_bytes(foreign)
    driver = open_on(devices[:2], overwrite_device=True)
    put(driver, memory, range(3))
    assert loaded(driver, memory, 2) is DONE


def test_what_was_discarded_stays_discarded_when_a_volatile_start_comes_between(
    devices: list[Path], open_on: Open, memory: BorrowedMemory
) -> None:
    """Without it, foreign bytes would keep their slots from the persistent start that follows."""
    devices[0].write_bytes(os.urandom(DEVICE_BYTES))
    open_on(devices[:1], overwrite_device=True).close(10)
    driver = open_on(devices[:1], persist_enabled=True)
    assert driver.usage() is not None
    assert isinstance(driver.adapter, SlotAdapter)
    assert driver.adapter.counters()["slots_withheld"] == 0


def test_another_geometry_or_number_of_devices_is_refused(
    devices: list[Path], open_on: Open, memory: BorrowedMemory
) -> None:
    first = open_on(devices[:2], persist_enabled=True)
    put(first, memory, range(4))
    first.close(10)
    before = [path.read_bytes() for path in devices[:2]]
    with pytest.raises(ResourceError, match="slot_bytes 131072 where 262144 is asked for"):
        open_on(devices[:2], slot_bytes=2 * SLOT_BYTES)
    with pytest.raises(ResourceError, match=r"2 striped.*1 striped"):
        open_on(devices[:1])
    with pytest.raises(ResourceError, match=r"device0' is not empty, and holds no further part"):
        open_on([devices[1], devices[0]])
    assert [path.read_bytes() for path in devices[:2]] == before
    again = open_on(devices[:2], persist_enabled=True)
    assert [loaded(again, memory, number) for number in range(4)] == [DONE] * 4


def test_a_device_of_another_set_is_refused(devices: list[Path], open_on: Open, memory: BorrowedMemory) -> None:
    for pair in ([devices[0], devices[1]], [devices[2], make(devices[2].with_name("device3"))]):
        driver = open_on(pair, persist_enabled=True)
        put(driver, memory, range(4))
        driver.close(10)
    with pytest.raises(ResourceError, match=r"device3' belongs to other devices than 'device_path '.*device0'"):
        open_on([devices[0], devices[2].with_name("device3")], persist_enabled=True)


def test_an_empty_device_in_the_place_of_a_lost_one_costs_only_its_own_objects(
    devices: list[Path], open_on: Open, memory: BorrowedMemory
) -> None:
    first = open_on(devices[:2], persist_enabled=True)
    put(first, memory, range(10))
    first.close(10)
    devices[1].write_bytes(b"")
    second = open_on(devices[:2], persist_enabled=True)
    outcomes = [loaded(second, memory, number) for number in range(10)]
    assert (outcomes.count(DONE), outcomes.count(MISSING)) == (5, 5)
    put(second, memory, range(10))
    assert [loaded(second, memory, number) for number in range(10)] == [DONE] * 10


@pytest.mark.parametrize("away", [0, 1])
@pytest.mark.parametrize("starts", [1, 2])
def test_what_a_device_that_was_away_holds_from_earlier_is_not_found(
    devices: list[Path], open_on: Open, memory: BorrowedMemory, away: int, starts: int, caplog: pytest.LogCaptureFixture
) -> None:
    first = open_on(devices[:2], persist_enabled=True)
    put(first, memory, range(10))
    first.close(10)
    earlier = devices[away].read_bytes()
    for start in range(starts):
        meanwhile = open_on(devices[:2], persist_enabled=True)
        assert meanwhile.delete(*map(object_key, range(start, 10, 2))) == (DONE,) * 5
        put(meanwhile, memory, range(20 + 10 * start, 25 + 10 * start))
        meanwhile.close(10)
    devices[away].write_bytes(earlier)
    last = open_on(devices[:2], persist_enabled=True)
    assert (
        f"away while the others were used, its content is discarded adapter=dax device_path '{devices[away]}'"
        in caplog.text
    )
    outcomes = [loaded(last, memory, number) for number in range(40)]
    assert set(outcomes) == {DONE, MISSING}
    deleted = [number for start in range(starts) for number in range(start, 10, 2)]
    assert {outcomes[number] for number in deleted} == {MISSING}
    assert isinstance(last.adapter, SlotAdapter)
    assert last.adapter.counters()["slots_withheld"] == last.adapter.counters()["foreign"] == 0
    put(last, memory, range(40))
    last.close(10)
    again = open_on(devices[:2], persist_enabled=True)
    assert [loaded(again, memory, number) for number in range(40)] == [DONE] * 40


def test_pages_that_vanish_are_failures_and_not_the_end(
    devices: list[Path], open_on: Open, memory: BorrowedMemory
) -> None:
    """The file is cut under the mapping; what is before the cut is served on."""
    driver = open_on(devices[:1])
    put(driver, memory, range(12))
    os.truncate(devices[0], MIB)
    outcomes = [loaded(driver, memory, number) for number in range(12)]
    assert outcomes[0] is DONE
    assert outcomes[-1] is FAILED
    late = object_key(100)
    assert driver.store((late, memory.sealed(late, payload_of(100, PAYLOAD_BYTES)))) == (FAILED,)
    assert loaded(driver, memory, 0) is DONE


@pytest.mark.parametrize("shift", [1, 5, 17])
def test_objects_that_changed_slots_after_the_checkpoint_are_all_found(
    devices: list[Path], open_on: Open, memory: BorrowedMemory, shift: int
) -> None:
    """The checkpoint names each slot as another object's than its header does: no slot is cleared for that."""
    first = open_on(devices[:1], persist_enabled=True)
    put(first, memory, range(20))
    first.close(10)
    second = open_on(devices[:1], persist_enabled=True)
    assert second.delete(*map(object_key, range(20))) == (DONE,) * 20
    put(second, memory, range(shift, 20 + shift))
    devices[1].write_bytes(devices[0].read_bytes())  # what a process that is killed now would leave behind
    third = open_on(devices[1:2], persist_enabled=True)
    outcomes = [loaded(third, memory, number) for number in range(20 + shift)]
    assert outcomes == [MISSING] * shift + [DONE] * 20


def test_an_object_of_several_tensors_is_one_run(devices: list[Path], open_on: Open, memory: BorrowedMemory) -> None:
    layouts = (ObjectLayout(2, 4, 16, 64, "bfloat16"), ObjectLayout(1, 2, 16, 24, "uint8"))
    layout = joined_layout(layouts)
    assert isinstance(layout, CompositeLayout)
    key = object_key(1)
    payload = b"".join(payload_of(number, part.payload_bytes) for number, part in enumerate(layouts))
    assert len(payload) == layout.payload_bytes
    driver = open_on(devices)
    assert driver.store((key, memory.sealed(key, payload))) == (DONE,)
    buffer = memory.lend(HEADER_BYTES + len(payload))
    assert driver.load((key, buffer)) == (DONE,)
    assert buffer.view[HEADER_BYTES:] == payload


def test_a_second_server_is_refused_and_the_first_serves_on(
    devices: list[Path], open_on: Open, memory: BorrowedMemory
) -> None:
    first = open_on(devices[:2])
    put(first, memory, range(2))
    for paths in (devices[:2], [devices[2], devices[1]]):
        with pytest.raises(ResourceError, match=rf"in use by server 'instance-of-tests' \(pid {os.getpid()}"):
            open_on(paths)
    assert loaded(first, memory, 1) is DONE


def test_a_device_without_room_for_one_slot_is_refused_and_closed(devices: list[Path], open_on: Open) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(Exception, match="hold no slot of 8388608 bytes"):
        open_on(devices, slot_bytes=8 * MIB)
    assert os.listdir("/proc/self/fd") == before


def test_without_threads_for_the_copies_nothing_stays_locked(
    devices: list[Path], open_on: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def engine(*_: object) -> None:
        raise OSError(errno.EAGAIN, "no threads")

    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr("lmcache_l2_dax.adapter.IoEngine", engine)
        with pytest.raises(ResourceError, match=r"no threads.*lower num_store_workers"):
            open_on(devices)
    assert os.listdir("/proc/self/fd") == before
    open_on(devices)
