"""A borrowed buffer is touched where and while it is borrowed, and only then."""

from __future__ import annotations

import sys
import time
from typing import Final

from lmcache_core.contracts.completion import JobDone
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_core.model.results import Outcome
from lmcache_devkit.borrowed_memory import ALIGN_BYTES, UNWRITTEN
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.l2.rig import OBJECT_BYTES, Rig, assert_right

DONE, MISSING = Outcome.DONE, Outcome.MISSING
WATCH_SECONDS: Final = 0.15
MARK: Final = b"\xa5"
SHARED_PAYLOAD_BYTES: Final = 2**20
"""Long enough for loads to overlap."""
LOADS_AT_ONCE: Final = 16
LOAD_ROUNDS: Final = 12
SWITCH_SECONDS: Final = 1e-5


class Borrows(L2Fixtures):
    def test_a_store_writes_nowhere_and_a_load_only_into_its_buffer(self, rig: Rig) -> None:
        """The pages before and behind, and what of the last page is not borrowed, stay as they are."""
        key = rig.key(0)
        rig.memory.lend(ALIGN_BYTES)
        _, stored = rig.whole(key)
        loaded = rig.memory.lend(OBJECT_BYTES)
        rig.memory.lend(ALIGN_BYTES)
        for buffer in (stored, loaded):
            _slack(buffer)[:] = UNWRITTEN * len(_slack(buffer))
        around = _around(stored)
        before = bytes(around)
        assert rig.driver.store((key, stored)) == (DONE,)
        assert bytes(around) == before, "the store wrote into borrowed memory"
        around = _around(loaded)
        before = bytes(around)
        assert rig.driver.load((key, loaded)) == (DONE,)
        assert_right(key, loaded)
        after = bytearray(around)
        after[ALIGN_BYTES : ALIGN_BYTES + OBJECT_BYTES] = UNWRITTEN * OBJECT_BYTES
        assert bytes(after) == before, "the load wrote outside of its buffer"

    def test_a_store_that_has_released_its_buffer_does_not_read_it_any_more(self, rig: Rig) -> None:
        rig.require_stores()
        keys = rig.keys(12)
        items = [rig.whole(key) for key in keys]
        jobs = [rig.driver.submit_store([item]) for item in items]
        for job, (_, buffer) in zip(jobs, items, strict=True):
            assert rig.driver.finish(job) == (DONE,)
            rig.driver.wait_released(job)
            buffer.view[:] = MARK * buffer.length
        time.sleep(WATCH_SECONDS)
        rig.assert_whole(*keys)

    def test_a_buffer_that_was_released_is_not_touched_any_more(self, rig: Rig) -> None:
        keys = rig.put(12)
        items = [rig.empty(key) for key in [*keys, *rig.keys(4, first=100)]]
        items += [] if rig.is_read_only else [rig.whole(key) for key in keys]
        jobs = [rig.driver.submit_load([item]) for item in items[:16]]
        jobs += [rig.driver.submit_store([item]) for item in items[16:]]
        for job, (_, buffer) in zip(jobs, items, strict=True):
            assert rig.driver.finish(job)[0] in (DONE, MISSING)
            rig.driver.wait_released(job)
            buffer.view[:] = MARK * buffer.length
        time.sleep(WATCH_SECONDS)
        for _, buffer in items:
            assert buffer.view == MARK * buffer.length, "a released buffer was written to"

    def test_loads_at_once_do_not_share_memory(self, rig: Rig) -> None:
        """Each gets its own object, however many are under way: what one writes, no other reads."""
        size = min(SHARED_PAYLOAD_BYTES, (rig.driver.adapter.max_object_bytes or SHARED_PAYLOAD_BYTES) - HEADER_BYTES)
        keys = rig.put(LOADS_AT_ONCE, payload_bytes=size)
        items = [rig.empty(key, size) for key in keys]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            for _ in range(LOAD_ROUNDS):
                for _, buffer in items:
                    buffer.view[:HEADER_BYTES] = UNWRITTEN * HEADER_BYTES
                jobs = [rig.driver.submit_load([item]) for item in items]
                assert [rig.driver.finish(job) for job in jobs] == [(DONE,)] * LOADS_AT_ONCE
                for item in items:
                    assert_right(*item)
        finally:
            sys.setswitchinterval(interval)

    def test_buffers_are_released_once(self, rig: Rig) -> None:
        keys = rig.put(8)
        jobs = [rig.driver.submit_load([rig.empty(key)]) for key in keys]
        for job in jobs:
            rig.driver.wait_released(job)
        rig.driver.close(self.wait_seconds)
        rig.driver.drain()
        for job in jobs:
            about = [completion for completion in rig.driver.seen if completion.job == job]
            answers = [completion for completion in about if isinstance(completion, JobDone)]
            assert len(answers) == 1
            assert len(about) == (1 if answers[0].released else 2)


def _around(buffer: BorrowedBuffer) -> memoryview:
    """From the page before the buffer to the one behind it."""
    pages = -(-buffer.length // ALIGN_BYTES) + 2
    start = buffer.offset - ALIGN_BYTES
    return buffer.region.view[start : start + pages * ALIGN_BYTES]


def _slack(buffer: BorrowedBuffer) -> memoryview:
    """What is behind the buffer on its last page."""
    end = buffer.offset + buffer.length
    return buffer.region.view[end : -(-end // ALIGN_BYTES) * ALIGN_BYTES]
