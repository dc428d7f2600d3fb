"""The memory in which objects are between serdes and a backend, as an adapter uses it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from lmcache_client.layout import ObjectLayout
from lmcache_core.builtin.memory_l2 import MemoryAdapter
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.contracts.serde import Serde
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.object_header import (
    HEADER_BYTES,
)
from lmcache_core.model.results import Outcome
from lmcache_devkit.borrowed_memory import object_key, payload_of
from lmcache_serde.chain.adapter import ChainedAdapter
from plugins.serde.tests.chain.heap_case import KEY, PAYLOAD, HeapCase, counters
from plugins.serde.tests.chain.serdes import Deflate

DONE, FOREIGN, DAMAGED = Outcome.DONE, Outcome.FOREIGN, Outcome.DAMAGED
FAILED, REJECTED, MISSING = Outcome.FAILED, Outcome.REJECTED, Outcome.MISSING


class TestScratch:
    def test_an_object_that_never_fits_is_rejected_and_says_what_to_raise(
        self, case: HeapCase, caplog: pytest.LogCaptureFixture
    ) -> None:
        driver = case.through("xor", memory_bytes=64 * 2**10)
        assert driver.adapter.max_object_bytes == 32 * 2**10
        fits, beyond = payload_of(1, 28 * 2**10), payload_of(2, 28 * 2**10 + 1)
        assert driver.store(case.whole(payload=beyond)) == (REJECTED,)
        assert "raise serde_memory_gb" in caplog.text
        assert driver.store(case.whole(payload=fits)) == (DONE,)
        assert driver.load(case.empty(payload_bytes=len(fits))) == (DONE,)
        assert driver.load(case.empty(payload_bytes=len(beyond))) == (FAILED,)
        assert counters(driver).refusals() == {"too_large": 2}

    def test_many_more_objects_than_there_is_room_for_go_through(self, case: HeapCase) -> None:
        driver = case.through("deflate", "xor", memory_bytes=160 * 2**10)
        keys = [object_key(number) for number in range(200)]
        items = [case.whole(key, payload_of(number, 10_000)) for number, key in enumerate(keys)]
        jobs = [driver.submit_store([item]) for item in items]
        assert {driver.finish(job) for job in jobs} == {(DONE,)}
        loads = [case.empty(key) for key in keys]
        jobs = [driver.submit_load(loads[at : at + 10]) for at in range(0, 200, 10)]
        jobs += [driver.submit_store([item]) for item in items]
        assert {outcome for job in jobs for outcome in driver.finish(job)} == {DONE}
        for number, (_, buffer) in enumerate(loads):
            assert bytes(buffer.view[HEADER_BYTES:]) == payload_of(number, 10_000)
        assert isinstance(driver.adapter, ChainedAdapter)
        assert driver.adapter._stores.is_idle
        assert driver.adapter._loads.is_idle

    def test_loads_go_on_while_stores_fill_their_half(self, case: HeapCase, monkeypatch: pytest.MonkeyPatch) -> None:
        driver = case.through("xor", memory_bytes=64 * 2**10)
        assert driver.store(case.whole()) == (DONE,)
        store, may_go_on = MemoryAdapter.store, threading.Event()

        def stalled(adapter: MemoryAdapter, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
            if key == object_key(2):  # one thread of the adapter inside: the other one is left for loads
                assert may_go_on.wait(20)
            return store(adapter, key, buffer)

        monkeypatch.setattr(MemoryAdapter, "store", stalled)
        large = payload_of(2, 28 * 2**10)
        jobs = [driver.submit_store([case.whole(object_key(number), large)]) for number in (2, 3, 4)]
        try:
            assert driver.load(case.empty()) == (DONE,)
            assert driver.has(object_key(3)) == (MISSING,), "it has no room before the first store is over"
        finally:
            may_go_on.set()
        assert [driver.finish(job) for job in jobs] == [(DONE,)] * 3


class TestOneLength:
    """An adapter inside that loads objects of one length only."""

    def test_objects_are_padded_to_one_length_and_the_padding_is_not_part_of_them(self) -> None:
        case = HeapCase(missing=Capability.ANY_LENGTH)
        try:
            driver = case.through("deflate")
            assert driver.store(case.whole(payload=bytes(10_000))) == (DONE,)
            small = case.stored
            assert len(small) == HEADER_BYTES + Deflate().stored_bytes_max(ObjectLayout(1, 1, 1, 10_000, "uint8"))
            assert driver.delete(KEY) == (DONE,)
            assert driver.store(case.whole()) == (DONE,)
            assert len(case.stored) == len(small)
            _, buffer = item = case.empty()
            assert driver.load(item) == (DONE,)
            assert bytes(buffer.view[HEADER_BYTES:]) == PAYLOAD
        finally:
            case.close()

    def test_what_it_takes_at_most_bounds_what_may_be_stored(self) -> None:
        case = HeapCase(missing=Capability.ANY_LENGTH)
        try:
            case.max_object_bytes = HEADER_BYTES + 10_000
            driver = case.through("deflate")
            most = driver.adapter.max_object_bytes
            assert most is not None
            assert HEADER_BYTES + 9_900 < most < HEADER_BYTES + 10_000
            assert driver.store(case.whole(payload=payload_of(1, most - HEADER_BYTES))) == (DONE,)
        finally:
            case.close()


class SlowDeflate(Serde):
    """Stays in `encode` until it may go on."""

    def __init__(self) -> None:
        self.entered, self.may_go_on = threading.Event(), threading.Event()

    def stored_bytes_max(self, layout: ObjectLayout) -> int:
        return layout.payload_bytes

    def encode(self, key: ObjectKey, layout: ObjectLayout, payload: memoryview, into: memoryview) -> int:
        self.entered.set()
        assert self.may_go_on.wait(20)
        into[:] = payload
        return len(payload)

    def decode(self, key: ObjectKey, layout: Any, parameters: bytes, stored: memoryview, into: memoryview) -> None:
        into[:] = stored


def test_a_serde_that_hangs_keeps_its_buffer_borrowed_beyond_the_close(case: HeapCase) -> None:
    slow = SlowDeflate()
    driver = case.through(("slow", slow), workers=1)
    jobs = [driver.submit_store([case.whole(object_key(number))]) for number in range(3)]
    assert slow.entered.wait(10)
    driver.close(0.2)
    assert [driver.finish(job) for job in jobs] == [(FAILED,)] * 3
    assert not driver.released(jobs[0])
    assert driver.released(jobs[1])
    slow.may_go_on.set()
    driver.wait_released(jobs[0])


def test_what_was_loaded_too_late_is_not_decoded_by_close(case: HeapCase) -> None:
    class SlowlyBack(SlowDeflate):
        decoded = 0

        def decode(self, key: ObjectKey, layout: Any, parameters: bytes, stored: memoryview, into: memoryview) -> None:
            self.decoded += 1
            self.entered.set()
            assert self.may_go_on.wait(20)

    slow = SlowlyBack()
    driver = case.through(("slow", slow), workers=1)
    slow.may_go_on.set()
    keys = [object_key(number) for number in range(3)]
    assert {driver.store(case.whole(key)) for key in keys} == {(DONE,)}
    slow.may_go_on.clear()
    slow.entered.clear()
    jobs = [driver.submit_load([case.empty(key)]) for key in keys]
    assert slow.entered.wait(10)
    driver.close(0.2)
    assert [driver.finish(job) for job in jobs] == [(FAILED,)] * 3
    slow.may_go_on.set()
    for job in jobs:
        driver.wait_released(job)
    assert slow.decoded == 1
