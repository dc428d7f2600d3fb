"""The adapter that goes wrong on cue: each fault is the one that was asked for, and without any it keeps every law."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from lmcache_core import Capability, Offer, Outcome
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.builtin.memory_l2 import MemorySettings, open_memory
from lmcache_core.testing import Fault, FaultPlan, FaultyAdapter, L2AdapterSuite, L2Driver, LentMemory
from lmcache_core.testing.l2.rig import OBJECT_BYTES, PAYLOAD_BYTES
from lmcache_core.testing.lent_memory import adapter_context, object_key, payload_of
from lmcache_core.testing.offer_under_test import OpenableOffer

DONE, MISSING, FAILED, DAMAGED = Outcome.DONE, Outcome.MISSING, Outcome.FAILED, Outcome.DAMAGED
KEY = object_key(1)
FAULTY = Offer(
    "faulty",
    "",
    "lmcache_core.testing.faulty_adapter:open_faulty",
    "lmcache_core.testing.faulty_settings:FaultySettings",
    Capability.DELETE | Capability.USAGE | Capability.LIST,
)


class TestWithoutFaults(L2AdapterSuite):
    offer = FAULTY
    payload_bytes_max = 0
    open_close_rounds = 100

    @pytest.fixture
    def small_settings(self) -> Mapping[str, Any]:
        return {"inner_settings": {"max_size_gb": self.small_bytes / 2**30}}


class TestSlow(L2AdapterSuite):
    """Many jobs are done later, so in another order."""

    offer = FAULTY
    payload_bytes_max = 0
    open_close_rounds = 0

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return {"delay": 0.5, "delay_seconds": 0.002, "bytes_per_second": 2e9}


@pytest.fixture
def memory() -> LentMemory:
    return LentMemory()


@pytest.fixture
def faulty(memory: LentMemory) -> Iterator[FaultyAdapter]:
    inner = open_memory(MemorySettings(), adapter_context(memory))
    faulty = FaultyAdapter(inner, FaultPlan(), delay_seconds=0.2)
    yield faulty
    faulty.close(5)


@pytest.fixture
def driver(faulty: FaultyAdapter) -> L2Driver:
    return L2Driver(faulty, wait_seconds=5)


def whole(memory: LentMemory) -> tuple[Any, Any]:
    return KEY, memory.sealed(KEY, payload_of(1, PAYLOAD_BYTES))


@pytest.mark.parametrize("verb", ["store", "load", "lookup", "delete"])
def test_one_that_fails_has_done_nothing(
    faulty: FaultyAdapter, driver: L2Driver, memory: LentMemory, verb: Any
) -> None:
    driver.store(whole(memory))
    buffer = memory.lend(OBJECT_BYTES)
    untouched = bytes(buffer.view)
    faulty.plan.cue(verb, Fault.FAIL)
    jobs = {
        "store": lambda: driver.store((object_key(2), memory.sealed(object_key(2), b"x"))),
        "load": lambda: driver.load((KEY, buffer)),
        "lookup": lambda: driver.lookup(KEY),
        "delete": lambda: driver.delete(KEY),
    }
    assert jobs[verb]() == (FAILED,)
    assert driver.has(KEY, object_key(2)) == (DONE, MISSING)
    assert bytes(buffer.view) == untouched


def test_a_torn_store_and_a_torn_load_say_done_and_fail_the_check(
    faulty: FaultyAdapter, driver: L2Driver, memory: LentMemory
) -> None:
    faulty.plan.cue("store", Fault.TEAR, None)
    assert driver.store(whole(memory)) == (DONE,)
    assert driver.verified_load((KEY, memory.lend(OBJECT_BYTES))) == (DAMAGED,)
    other = object_key(2)
    assert driver.store((other, memory.sealed(other, payload_of(2, PAYLOAD_BYTES)))) == (DONE,)
    faulty.plan.cue("load", Fault.TEAR)
    assert driver.load((other, buffer := memory.lend(OBJECT_BYTES))) == (DONE,)
    assert bytes(buffer.view[OBJECT_BYTES // 2 :]) == b"\xee" * (OBJECT_BYTES - OBJECT_BYTES // 2)
    assert driver.verified_load((other, memory.lend(OBJECT_BYTES))) == (DONE,)


def test_one_that_stalls_is_done_when_it_is_resumed(
    faulty: FaultyAdapter, driver: L2Driver, memory: LentMemory
) -> None:
    faulty.plan.cue("store", Fault.STALL)
    job = driver.submit_store([whole(memory)])
    assert driver.has(KEY) == (MISSING,)
    assert driver.answers()[job] == 0
    faulty.resume()
    assert driver.finish(job) == (DONE,)
    assert driver.has(KEY) == (DONE,)


def test_what_stalls_when_it_closes_is_failed_and_released(
    faulty: FaultyAdapter, driver: L2Driver, memory: LentMemory
) -> None:
    faulty.plan.cue("store", Fault.STALL)
    job = driver.submit_store([whole(memory)])
    driver.close(5)
    assert driver.done(job).outcomes == (FAILED,)
    assert driver.done(job).released


def test_a_lost_answer_never_comes(faulty: FaultyAdapter, driver: L2Driver, memory: LentMemory) -> None:
    faulty.plan.cue("store", Fault.LOSE)
    job = driver.submit_store([whole(memory)])
    while faulty.inner.usage() != (OBJECT_BYTES, 2**30, 1):
        time.sleep(0.001)
    assert driver.has(KEY) == (DONE,)
    driver.close(5)
    assert driver.answers()[job] == 0


def test_a_delay_and_a_speed_take_their_time(faulty: FaultyAdapter, driver: L2Driver, memory: LentMemory) -> None:
    faulty.plan.cue("lookup", Fault.DELAY)
    start = time.monotonic()
    assert driver.has(KEY) == (MISSING,)
    assert time.monotonic() - start >= 0.2
    inner = open_memory(MemorySettings(), adapter_context(memory))
    slow = FaultyAdapter(inner, FaultPlan(), bytes_per_second=OBJECT_BYTES / 0.1)
    slow_driver = L2Driver(slow)
    start = time.monotonic()
    jobs = [slow_driver.submit_store([whole(memory)]) for _ in range(2)]
    answers = [slow_driver.finish(job) for job in jobs]
    assert answers == [(DONE,), (DONE,)]
    assert time.monotonic() - start >= 0.2, "they share one link"
    slow.close(5)


def test_one_seed_draws_the_same_faults_each_time() -> None:
    chances = {Fault.FAIL: 0.25, Fault.TEAR: 0.25}
    plans = [FaultPlan(chances, seed) for seed in (1, 1, 2)]
    drawn = [[plan.take("load") for _ in range(200)] for plan in plans]
    assert drawn[0] == drawn[1] != drawn[2]
    assert {drawn[0].count(fault) // 30 for fault in chances} == {1}
    assert drawn[0].count(None) > 70
    with pytest.raises(ValueError, match="at most 1 together"):
        FaultPlan({Fault.FAIL: 0.7, Fault.LOSE: 0.5})


def test_a_server_can_be_given_one() -> None:
    plugins = load_plugins(["lmcache_core.testing.faulty_offer"])
    offer = plugins.offer("l2_adapter", "faulty")
    assert offer.capabilities == FAULTY.capabilities
    memory = LentMemory()
    adapter = OpenableOffer(offer, {"fail": 1}).open(adapter_context(memory))
    assert L2Driver(adapter).store(whole(memory)) == (FAILED,)
    adapter.close(5)
