"""Every job is answered once, and the descriptor says so."""

from __future__ import annotations

import threading

from lmcache_core.contracts.completion import JobDone, JobId
from lmcache_core.model.keys import ObjectKey
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.l2.rig import Rig
from lmcache_devkit.l2_driver import L2Driver

THREADS = 16


class Completions(L2Fixtures):
    def test_each_job_is_answered_once_and_then_the_descriptor_is_quiet(self, rig: Rig) -> None:
        """Many threads submit jobs of all kinds, and share keys."""
        driver = rig.driver
        batches = [[rig.whole(key, 100) for key in rig.keys(2, first)] for first in range(THREADS)]
        targets = [[rig.empty(key, 100) for key, _ in batch] for batch in batches]
        jobs: list[JobId] = []

        def submit(number: int) -> None:
            keys = [key for key, _ in batches[number]]
            jobs.append(driver.submit_store(batches[number]))
            jobs.append(driver.adapter.submit_lookup(keys))
            jobs.append(driver.submit_load(targets[number]))
            jobs.append(driver.adapter.submit_lookup(()))

        threads = [threading.Thread(target=submit, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for job in jobs:
            driver.finish(job)
        unpin_what_was_found(driver, rig.keys(THREADS + 1))
        assert len(set(jobs)) == len(jobs), "two jobs have one id"
        driver.close(self.wait_seconds)
        assert driver.answers() == dict.fromkeys(jobs, 1)
        assert all(completion.released for completion in driver.seen if isinstance(completion, JobDone))

    def test_the_descriptor_is_readable_while_something_waits_and_quiet_after_a_drain(self, rig: Rig) -> None:
        driver = rig.driver
        assert driver.is_quiet()
        for round_ in range(20):
            driver.finish(driver.submit_store([rig.whole(rig.key(round_), 100)]))
            driver.drain()
            assert driver.is_quiet(), "the descriptor is readable and nothing waits"
            assert list(driver.adapter.completions().drain()) == []

    def test_an_answer_that_was_not_taken_keeps_the_descriptor_readable(self, rig: Rig) -> None:
        driver = rig.driver
        first, second = driver.adapter.submit_lookup([]), driver.adapter.submit_lookup([])
        driver.finish(second)
        assert driver.answers() == {first: 1, second: 1}
        third = driver.adapter.submit_lookup([])
        driver.done(third)
        assert driver.is_quiet()

    def test_completions_are_the_same_object_for_life(self, rig: Rig) -> None:
        adapter = rig.driver.adapter
        source, fd = adapter.completions(), adapter.completions().fileno()
        rig.put(1)
        assert adapter.completions() is source
        assert adapter.completions().fileno() == fd


def unpin_what_was_found(driver: L2Driver, keys: list[ObjectKey]) -> None:
    """Every pin that any lookup of the test may have taken."""
    for _ in range(2 * THREADS):
        driver.adapter.unpin(keys)
