from __future__ import annotations

import mmap
import time

import pytest

from lmcache_transfer_torch.cuda.arena_pins import ArenaPins
from lmcache_transfer_torch.cuda.driver import Span
from plugins.transfer_torch.tests.cuda.simulated_gpu import OUT_OF_MEMORY, Machine

PAGE = mmap.PAGESIZE
SLICE = 16 * PAGE
BEGIN = 5 * SLICE + 3 * PAGE
"""Not at a slice."""


def _wait(pins: ArenaPins, address: int, length: int) -> bool:
    end = time.monotonic() + 5
    while not pins.covers(address, length) and time.monotonic() < end:
        time.sleep(0.002)
    return pins.covers(address, length)


def test_only_what_is_used_is_pinned_and_no_more_than_the_arena() -> None:
    machine = Machine()
    pins = ArenaPins(machine.open(0), Span(BEGIN, 3 * SLICE), SLICE)
    assert not pins.covers(BEGIN, PAGE)
    assert _wait(pins, BEGIN, PAGE)
    assert pins.status()["pinned_bytes"] == SLICE - 3 * PAGE
    assert _wait(pins, BEGIN + 3 * SLICE - PAGE, PAGE)
    assert pins.status()["pinned_bytes"] == SLICE
    assert not pins.covers(BEGIN + 3 * SLICE - PAGE, 2 * PAGE), "the arena ends there"
    pins.close()
    assert machine.live["pin"] == 0


def test_a_stretch_over_a_seam_needs_both_slices() -> None:
    machine = Machine()
    pins = ArenaPins(machine.open(0), Span(BEGIN, 3 * SLICE), SLICE)
    assert _wait(pins, 6 * SLICE - PAGE, 2 * PAGE)
    assert machine.live["pin"] == 2
    pins.close()


def test_a_slice_that_cannot_be_pinned_stays_so_and_is_shown() -> None:
    machine = Machine()
    machine.faults.at_call, machine.faults.name = 0, OUT_OF_MEMORY
    pins = ArenaPins(machine.open(0), Span(BEGIN, 3 * SLICE), SLICE)
    pins.covers(BEGIN, PAGE)
    assert _wait(pins, BEGIN + SLICE, PAGE), "others are"
    assert not pins.covers(BEGIN, PAGE)
    status = pins.status()
    assert status["slices_failed"] == 1
    assert OUT_OF_MEMORY in str(status["failure"])
    pins.close()
    assert machine.calls.count("pin") == 2


def test_an_arena_begins_at_a_page() -> None:
    with pytest.raises(ValueError, match="page"):
        ArenaPins(Machine().open(0), Span(BEGIN + 1, SLICE), SLICE)
