"""A backend that does not answer makes outcomes, not hangs; needs the fixture `stalled`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

import pytest

from lmcache_core.contracts.completion import BuffersReleased, JobDone, JobId
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import Outcome
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.l2.rig import Rig
from lmcache_devkit.l2_driver import CLOSE_GRACE_SECONDS, L2Driver

Stalled = Callable[[], AbstractContextManager[None]]
SUBMIT_SECONDS_MAX: Final = 5.0
"""Of 84 jobs, on a machine that may be busy: who waits an eighth of a second for each load alone takes longer."""
DEADLINE_SECONDS: Final = 0.5
WATCH_SECONDS: Final = 0.15
MARK: Final = b"\xa5"


class Stalls(L2Fixtures):
    def test_submitting_to_a_backend_that_does_not_answer_returns_at_once(
        self, rig: Rig, stalled: Stalled | None
    ) -> None:
        stalled = _needed(stalled)
        keys = rig.put(40)
        adapter = rig.driver.adapter
        with stalled():
            start = time.monotonic()
            jobs = [rig.driver.submit_load([rig.empty(key)]) for key in keys]
            jobs += [rig.driver.submit_store([rig.whole(key)]) for key in rig.keys(40, first=100)]
            jobs.append(adapter.submit_lookup([rig.key(900)]))
            jobs.append(adapter.submit_delete([rig.key(901)]))
            adapter.unpin(keys)
            adapter.reject(rig.key(902), Outcome.DAMAGED)
            adapter.usage()
            seconds = time.monotonic() - start
        assert seconds < SUBMIT_SECONDS_MAX, f"{len(jobs)} jobs took {seconds:.1f} s to submit"
        for job in jobs:
            rig.driver.finish(job)

    def test_close_answers_every_job_of_a_backend_that_does_not_answer(self, rig: Rig, stalled: Stalled | None) -> None:
        """What is not released then is left alone from its release on."""
        stalled = _needed(stalled)
        keys = rig.put(10)
        driver = rig.driver
        borrowed = [rig.empty(key) for key in keys] + [rig.whole(key) for key in rig.keys(10, first=100)]
        with stalled():
            jobs = [driver.submit_load([item]) for item in borrowed[:10]]
            jobs += [driver.submit_store([item]) for item in borrowed[10:]]
            start = time.monotonic()
            driver.close(DEADLINE_SECONDS)
            seconds = time.monotonic() - start
            assert seconds < DEADLINE_SECONDS + CLOSE_GRACE_SECONDS
            answers = driver.answers()
            assert [answers[job] for job in jobs] == [1] * len(jobs), "not every job was answered once"
            for job in jobs:
                assert driver.finish(job) != (Outcome.DONE,)
            _mark_released(driver, jobs, borrowed)
        for job in jobs:
            driver.wait_released(job)
        _mark_released(driver, jobs, borrowed)
        time.sleep(WATCH_SECONDS)
        for _, buffer in borrowed:
            assert buffer.view == MARK * buffer.length, "a released buffer was written to"
        driver.drain()
        for job in jobs:
            releases = [c for c in driver.seen if c.job == job and (isinstance(c, BuffersReleased) or c.released)]
            assert len(releases) == 1
            assert sum(isinstance(c, JobDone) for c in driver.seen if c.job == job) == 1

    def test_after_the_backend_answers_again_it_serves(self, rig: Rig, stalled: Stalled | None) -> None:
        stalled = _needed(stalled)
        keys = rig.put(3)
        with stalled():
            job = rig.driver.submit_load([rig.empty(keys[0])])
        rig.driver.wait_released(job)
        rig.assert_whole(*keys)
        rig.put(3, first=10)


def _mark_released(driver: L2Driver, jobs: list[JobId], borrowed: list[tuple[ObjectKey, BorrowedBuffer]]) -> None:
    """Write over what is ours again, as the next user of the memory would."""
    for job, (_, buffer) in zip(jobs, borrowed, strict=True):
        if driver.released(job):
            buffer.view[:] = MARK * buffer.length


def _needed(stalled: Stalled | None) -> Stalled:
    if stalled is None:
        pytest.skip("the fixture stalled gives no way to keep the backend from answering")
    return stalled
