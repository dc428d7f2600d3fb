"""An error of the backend is FAILED: neither a success nor a miss; needs the fixture `failing`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

import pytest

from lmcache_core.contracts.capability import Capability
from lmcache_core.model.results import Outcome
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.l2.rig import Rig

Failing = Callable[[], AbstractContextManager[None]]
DONE, MISSING, FAILED, REJECTED = Outcome.DONE, Outcome.MISSING, Outcome.FAILED, Outcome.REJECTED
LOOK_SECONDS: Final = 0.1


class Failures(L2Fixtures):
    def test_a_store_that_the_backend_fails_is_not_done(self, rig: Rig, failing: Failing | None) -> None:
        failing = _needed(failing)
        key = rig.key(0)
        with failing():
            (outcome,) = rig.driver.own_store(rig.whole(key))
        assert outcome in (FAILED, REJECTED), f"the backend failed, and the store is {outcome}"

    def test_a_load_that_the_backend_fails_is_neither_done_nor_missing(self, rig: Rig, failing: Failing | None) -> None:
        """The next adapter is asked for what is MISSING, and no adapter for what is DAMAGED; an object that cannot be read
        now is neither."""
        failing = _needed(failing)
        (key,) = rig.put(1)
        with failing():
            (outcome,) = rig.driver.load(rig.empty(key))
        assert outcome is FAILED, f"the backend failed, and the load is {outcome}"

    def test_a_lookup_that_the_backend_fails_is_not_missing(self, rig: Rig, failing: Failing | None) -> None:
        """DONE is right where an index in memory knows it."""
        failing = _needed(failing)
        (key,) = rig.put(1)
        with failing():
            (outcome,) = rig.driver.has(key)
        assert outcome in (FAILED, DONE), f"the backend failed, and the lookup of what is there is {outcome}"

    def test_a_delete_that_the_backend_fails_is_neither_done_nor_missing(
        self, rig: Rig, failing: Failing | None
    ) -> None:
        failing = _needed(failing)
        rig.require(Capability.DELETE)
        (key,) = rig.put(1)
        with failing():
            (outcome,) = rig.driver.delete(key)
        assert outcome in (FAILED, REJECTED), f"the backend failed, and the delete is {outcome}"

    def test_after_it_has_failed_everything_is_there_as_before(self, rig: Rig, failing: Failing | None) -> None:
        failing = _needed(failing)
        keys = rig.put(2)
        with failing():
            rig.driver.load(rig.empty(keys[0]))
            rig.driver.has(*keys)
            rig.driver.own_store(rig.whole(rig.key(2)))
        end = time.monotonic() + self.wait_seconds
        while rig.driver.load(rig.empty(keys[0])) != (DONE,):  # a circuit breaker may have to close first
            assert time.monotonic() < end, (
                f"what was there is not served {self.wait_seconds:g} s after the last failure"
            )
            time.sleep(LOOK_SECONDS)
        rig.assert_whole(*keys)


def _needed(failing: Failing | None) -> Failing:
    if failing is None:
        pytest.skip("the fixture failing gives no way to make the backend fail")
    return failing
