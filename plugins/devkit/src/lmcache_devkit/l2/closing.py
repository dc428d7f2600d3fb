"""An adapter ends in time, and nothing of it stays."""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import Final

import pytest

from lmcache_core.contracts.capability import Capability
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_core.model.results import Outcome
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.l2.rig import Rig
from lmcache_devkit.l2_driver import CLOSE_GRACE_SECONDS, L2Driver

DONE, FAILED = Outcome.DONE, Outcome.FAILED
WARM_UP_ROUNDS: Final = 20
SPARE_DESCRIPTORS: Final = 2
GROWTH_BYTES_MAX: Final = 16 * 2**20


class Closing(L2Fixtures):
    def test_after_close_everything_fails_and_is_still_answered(self, rig: Rig) -> None:
        (key,) = rig.put(1)
        driver = rig.driver
        driver.close(self.wait_seconds)
        assert driver.own_store(rig.whole(key)) == driver.load(rig.empty(key)) == (FAILED,)
        assert driver.lookup(key) == driver.delete(key) == (FAILED,)
        driver.adapter.unpin([key])
        driver.adapter.reject(key, Outcome.DAMAGED)

    def test_closing_again_does_nothing(self, rig: Rig) -> None:
        rig.put(1)
        for _ in range(3):
            rig.driver.close(self.wait_seconds)
        assert rig.driver.is_quiet()

    def test_close_finishes_what_was_submitted(self, rig: Rig) -> None:
        rig.require_stores()
        rig.require_room(50 * 2 * HEADER_BYTES)
        keys = rig.keys(50)
        job = rig.driver.submit_store([rig.whole(key, 100) for key in keys])
        rig.driver.close(self.wait_seconds)
        done = rig.driver.done(job)
        assert done.outcomes == (DONE,) * 50
        assert done.released

    def test_close_without_time_answers_every_job(self, rig: Rig) -> None:
        """What was not done is FAILED.  Buffers that are still in use are given back when they are not."""
        rig.require_room(100 * (HEADER_BYTES + 20_000))
        driver = rig.driver
        ends = {DONE, FAILED, Outcome.MISSING, *([Outcome.REJECTED] if rig.is_read_only else [])}
        jobs = [driver.submit_store([rig.whole(key, 20_000)]) for key in rig.keys(100)]
        jobs += [driver.submit_load([rig.empty(key, 20_000)]) for key in rig.keys(100)]
        start = time.monotonic()
        driver.close(0)
        assert time.monotonic() - start < CLOSE_GRACE_SECONDS
        assert driver.answers() == dict.fromkeys(jobs, 1)
        for job in jobs:
            assert set(driver.finish(job)) <= ends
            driver.wait_released(job)
        stored = [key for key, job in zip(rig.keys(100), jobs[:100], strict=True) if driver.finish(job) == (DONE,)]
        if Capability.DURABLE in rig.capabilities:
            rig.reopen()
            rig.assert_whole(*stored, payload_bytes=20_000)

    def test_two_threads_may_close_at_once(self, rig: Rig) -> None:
        jobs = [rig.driver.submit_store([rig.whole(key, 100)]) for key in rig.keys(20)]
        second = threading.Thread(target=rig.driver.adapter.close, args=(self.wait_seconds,), daemon=True)
        second.start()
        rig.driver.close(self.wait_seconds)
        second.join(self.wait_seconds)
        assert not second.is_alive()
        assert rig.driver.answers() == dict.fromkeys(jobs, 1)

    def test_opening_and_closing_leaves_no_thread_descriptor_or_memory(self, rig: Rig) -> None:
        if not self.open_close_rounds:
            pytest.skip("open_close_rounds of the suite is 0")
        rig.driver.close(self.wait_seconds)
        for _ in range(WARM_UP_ROUNDS):
            _open_and_close(rig)
        before = _Held.now()
        for _ in range(self.open_close_rounds):
            _open_and_close(rig)
        end = time.monotonic() + CLOSE_GRACE_SECONDS
        while (after := _Held.now()).exceeds(before) and time.monotonic() < end:
            time.sleep(0.05)
        assert not after.exceeds(before), (
            f"{self.open_close_rounds} times opened and closed: {after.threads - before.threads:+d} threads, "
            f"{after.descriptors - before.descriptors:+d} descriptors, {after.bytes - before.bytes:+d} bytes of memory"
        )


class _Held:
    """What this process holds."""

    def __init__(self, threads: int, descriptors: int, resident_bytes: int) -> None:
        self.threads, self.descriptors, self.bytes = threads, descriptors, resident_bytes

    @classmethod
    def now(cls) -> _Held:
        gc.collect()
        with open("/proc/self/statm") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return cls(len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), resident)

    def exceeds(self, before: _Held) -> bool:
        return (
            self.threads > before.threads
            or self.descriptors > before.descriptors + SPARE_DESCRIPTORS
            or self.bytes > before.bytes + GROWTH_BYTES_MAX
        )


def _open_and_close(rig: Rig) -> None:
    adapter = rig.under_test.open(rig.context())
    driver = L2Driver(adapter, CLOSE_GRACE_SECONDS)
    driver.has(rig.key(0))
    adapter.close(CLOSE_GRACE_SECONDS)
