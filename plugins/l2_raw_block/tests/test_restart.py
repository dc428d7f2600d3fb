"""What the next start finds, however the last one ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmcache_core import HEADER_BYTES, Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key
from lmcache_devkit.l2_driver import L2Driver
from lmcache_devkit.l2_suite import put
from lmcache_l2_raw_block.adapter import open_raw_block
from lmcache_object_slots import SlotGeometry
from plugins.l2_raw_block.tests.conftest import (
    META_BYTES,
    SLOT_BYTES,
    SLOTS,
    OpenHere,
    counters,
    known_usage,
    settings_for,
)
from plugins.l2_raw_block.tests.slot_media import Slots

DONE, MISSING, DAMAGED = Outcome.DONE, Outcome.MISSING, Outcome.DAMAGED
OBJECT_BYTES = HEADER_BYTES + 10_000


@pytest.fixture
def slots(device: Path) -> Slots:
    return Slots(device, SlotGeometry(SLOT_BYTES, SLOTS, meta_bytes=META_BYTES))


def test_after_a_clean_end_no_header_is_read(open_here: OpenHere, memory: BorrowedMemory) -> None:
    first = open_here()
    keys = put(first, memory, 5)
    first.delete(keys[0])
    first.close(10)
    second = open_here()
    assert counters(second)["operations"] == 0
    assert second.adapter.usage() is not None
    assert second.has(*keys) == (MISSING, *[DONE] * 4)


def test_an_end_without_a_change_writes_nothing(device: Path, open_here: OpenHere, memory: BorrowedMemory) -> None:
    first = open_here()
    keys = put(first, memory, 5)
    first.close(10)
    open_here().close(10)
    before = device.read_bytes()
    third = open_here()
    third.load(*((key, memory.lend(OBJECT_BYTES)) for key in keys))
    third.close(10)
    after = device.read_bytes()
    assert after[: 2 * 4096] + after[3 * 4096 :] == before[: 2 * 4096] + before[3 * 4096 :], "all but the owner's page"


def test_verifying_finds_what_another_process_did(open_here: OpenHere, memory: BorrowedMemory, slots: Slots) -> None:
    first = open_here()
    keys = put(first, memory, 4)
    first.close(10)
    slots.remove(keys[0])
    slots.flip(keys[1], 100)
    second = open_here(meta_verify_on_load=True)
    assert known_usage(second).objects == 2
    assert second.has(*keys) == (MISSING, MISSING, DONE, DONE)
    assert counters(second)["damaged"] == 1


@pytest.mark.parametrize("half", ["newer", "both"])
def test_a_torn_checkpoint_costs_nothing(device: Path, open_here: OpenHere, memory: BorrowedMemory, half: str) -> None:
    keys = []
    for number in range(3):
        driver = open_here()
        keys += put(driver, memory, 2, first=10 * number)
        driver.close(10)
    start, length = 4 * 4096, (META_BYTES - 4 * 4096) // 2 // 4096 * 4096
    with device.open("r+b") as file:
        for place in range(2):
            file.seek(start + place * length)
            page = file.read(4096)
            if half == "both" or b'"sequence":3' in page:
                file.seek(start + place * length + 4096 + 500)
                file.write(b"\xff" * 100)
    last = open_here()
    assert known_usage(last) == (6 * OBJECT_BYTES, SLOTS * OBJECT_BYTES, 6)
    assert last.has(*keys) == (DONE,) * 6


def test_when_the_newer_superblock_is_lost_an_older_checkpoint_is_not_believed(
    device: Path, open_here: OpenHere, memory: BorrowedMemory
) -> None:
    """Also not when changes bring the older superblock's count of them to where the lost one's was."""
    first = open_here()
    old = put(first, memory, 4)
    first.close(10)
    second = open_here()
    second.delete(*old[:2])
    new = put(second, memory, 3, first=50)
    for clean in (False, True):
        if clean:
            second.close(10)
        left_behind = device.read_bytes()
        copies = [left_behind[copy * 4096 : copy * 4096 + 4096] for copy in range(2)]
        newer = max(range(2), key=lambda copy: int(copies[copy].split(b'"sequence":')[1].split(b",")[0]))
        damaged = device.with_name(f"damaged {clean}")
        damaged.write_bytes(left_behind[: newer * 4096 + 100] + b"??" + left_behind[newer * 4096 + 102 :])
        driver = L2Driver(open_raw_block(settings_for(damaged), adapter_context(memory, name="raw_block")))
        assert known_usage(driver).objects == 5
        assert driver.has(*old, *new) == (MISSING, MISSING, *[DONE] * 5)
        newest = put(driver, memory, 1, first=90)
        killed = device.with_name(f"killed {clean}")
        killed.write_bytes(damaged.read_bytes())
        driver.close(10)
        last = L2Driver(open_raw_block(settings_for(killed), adapter_context(memory, name="raw_block")))
        assert known_usage(last).objects == 6
        assert last.has(*newest) == (DONE,)
        last.close(10)


def test_what_is_forgotten_never_comes_back(open_here: OpenHere, memory: BorrowedMemory, slots: Slots) -> None:
    first = open_here()
    old = put(first, memory, 6)
    first.close(10)
    second = open_here(load_checkpoint_on_init=False)
    assert known_usage(second).objects == 0
    assert list(slots.objects()) == []
    new = put(second, memory, 2, first=50)
    second.close(10)
    third = open_here()
    assert known_usage(third).objects == 2
    assert third.has(*old, *new) == (*[MISSING] * 6, DONE, DONE)


def test_of_one_object_in_two_slots_the_newer_stays(device: Path, open_here: OpenHere, memory: BorrowedMemory) -> None:
    first = open_here()
    (key, other) = put(first, memory, 2)
    first.close(10)
    geometry = SlotGeometry(SLOT_BYTES, SLOTS, meta_bytes=META_BYTES)
    with device.open("r+b") as file:
        file.seek(geometry.run_at(0))
        run = file.read(SLOT_BYTES)
        file.seek(geometry.run_at(20))
        file.write(run)
    second = open_here(meta_verify_on_load=True)
    assert known_usage(second).objects == 2
    assert second.has(key, other) == (DONE, DONE)
    assert second.delete(key) == (DONE,)
    second.close(10)
    third = open_here(meta_verify_on_load=True)
    assert known_usage(third).objects == 1
    assert third.has(key, other) == (MISSING, DONE)


def test_a_slot_that_is_reused_is_its_last_object(open_here: OpenHere, memory: BorrowedMemory) -> None:
    driver = open_here()
    for number in range(0, 5 * SLOTS, SLOTS):
        keys = put(driver, memory, SLOTS, first=number)
        assert driver.store((object_key(9999), memory.sealed(object_key(9999), b"x"))) == (Outcome.REJECTED,)
        usage = driver.adapter.usage()
        assert usage is not None
        assert usage.used_bytes == usage.capacity_bytes == SLOTS * OBJECT_BYTES
        assert driver.delete(*keys) == (DONE,) * SLOTS
    assert driver.adapter.usage() == (0, SLOTS * SLOT_BYTES, 0)


def test_periodic_checkpoints_are_written_while_it_serves(open_here: OpenHere, memory: BorrowedMemory) -> None:
    driver = open_here(meta_checkpoint_interval_sec=0.05, meta_idle_quiet_ms=1)
    put(driver, memory, 3)
    end = time.monotonic() + 30
    while not counters(driver)["checkpoints"]:
        assert time.monotonic() < end, "no checkpoint was written"
        time.sleep(0.01)


CHILD = """
import sys
from pathlib import Path
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key, payload_of
from lmcache_devkit.l2_driver import L2Driver
from lmcache_l2_raw_block.adapter import open_raw_block
from plugins.l2_raw_block.tests.conftest import settings_for

memory = BorrowedMemory()
driver = L2Driver(open_raw_block(settings_for(Path(sys.argv[1]), meta_checkpoint_interval_sec=0.01,
    meta_idle_quiet_ms=0, io_engine=sys.argv[2]), adapter_context(memory)))
items = [(object_key(n), memory.sealed(object_key(n), payload_of(n, 10_000))) for n in range(60)]
turn = 0
while True:
    n = turn * 7 % 60
    if driver.has(items[n][0])[0].name == "DONE":
        print("-", n, flush=True)
        print("=-", n, driver.delete(items[n][0])[0].name, flush=True)
    else:
        print("+", n, flush=True)
        print("=+", n, driver.store(items[n])[0].name, flush=True)
    driver.seen.clear()
    turn += 1
"""


def reported(lines: Iterator[str]) -> tuple[set[int], set[int]]:
    """Which objects are there by what the child said, and which may or may not be."""
    there: set[int] = set()
    open_ones: set[int] = set()
    for line in lines:
        verb, number, *outcome = line.split()
        if not outcome:
            open_ones.add(int(number))
            continue
        open_ones.discard(int(number))
        if outcome == ["DONE"]:
            (there.add if verb == "=+" else there.discard)(int(number))
    return there - open_ones, open_ones


@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_it_is_killed_again_and_again(device: Path, open_here: OpenHere, memory: BorrowedMemory, kills: int) -> None:
    there: set[int] = set()
    buffer = memory.lend(OBJECT_BYTES)
    for kill in range(kills):
        code = CHILD.replace("turn = 0", f"turn = {kill * 13}")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(device), "posix"], stdout=subprocess.PIPE, text=True, env=environment
        )
        assert child.stdout is not None
        with child:
            lines = [child.stdout.readline() for _ in range(4 + kill * 5 % 90)]
            child.send_signal(signal.SIGKILL)
            lines += child.stdout.read().splitlines()
        whole = [line for line in lines if line.strip().count(" ") >= (2 if line.startswith("=") else 1)]
        sure, maybe = reported(iter([*(f"=+ {number} DONE" for number in there), *whole]))
        driver = open_here()
        usage = known_usage(driver)
        found = {n for n in range(60) if driver.has(object_key(n)) == (DONE,)}
        assert sure <= found <= sure | maybe
        assert usage[::2] == (len(found) * OBJECT_BYTES, len(found))
        assert {int.from_bytes(key.chunk_hash, "little") for key in driver.keys(7)} == found
        for number in found:
            assert driver.load((object_key(number), buffer)) == (DONE,)
        driver.close(10)
        there = found
