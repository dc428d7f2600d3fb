"""The adapter that goes wrong on cue: each fault is the one that was asked for, and without any it keeps every requirement."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pytest

from core.tests.injected import injected, mock
from lmcache_client.errors import ConfigError
from lmcache_core import Capability, Outcome
from lmcache_core.app.open_l2 import open_adapter
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.builtin.memory_l2 import MemoryAdapter, MemorySettings
from lmcache_core.contracts.l2_adapter import AdapterContext
from lmcache_core.contracts.settings import validate
from lmcache_devkit import (
    BorrowedMemory,
    Fault,
    FaultInjectAdapter,
    FaultPlan,
    L2AdapterSuite,
    L2Driver,
    stall_methods,
)
from lmcache_devkit.borrowed_memory import adapter_context, object_key, payload_of
from lmcache_devkit.fault_inject_opening import open_fault_inject
from lmcache_devkit.fault_inject_settings import FaultInjectSettings
from lmcache_devkit.fault_plan import Verb
from lmcache_devkit.l2.rig import OBJECT_BYTES, PAYLOAD_BYTES

DONE, MISSING, FAILED, DAMAGED = Outcome.DONE, Outcome.MISSING, Outcome.FAILED, Outcome.DAMAGED
KEY, OTHER = object_key(1), object_key(2)
OF_MEMORY = Capability.DELETE | Capability.USAGE | Capability.LIST | Capability.ANY_LENGTH


class TestWithoutFaults(L2AdapterSuite):
    offer = "fault_inject"
    payload_bytes_max = 0
    open_close_rounds = 50

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return {"inner": {"type": "memory"}}

    @pytest.fixture
    def small_settings(self) -> Mapping[str, Any]:
        return {"inner": {"type": "memory", "max_size_gb": self.small_bytes / 2**30}}

    @pytest.fixture
    def stalled(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
        return stall_methods(monkeypatch, MemoryAdapter)


@pytest.mark.slow
class TestSlow(L2AdapterSuite):
    """Much is done later, so in another order."""

    offer = "fault_inject"
    payload_bytes_max = 0
    open_close_rounds = 0

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        delayed = injected(mock(1, 2e9), delay=0.5, also={"delay_seconds": 0.002})
        return {name: value for name, value in delayed.items() if name != "type"}


@pytest.fixture
def memory() -> BorrowedMemory:
    return BorrowedMemory()


@pytest.fixture
def context(memory: BorrowedMemory) -> AdapterContext:
    return adapter_context(memory)


@pytest.fixture
def faulty(context: AdapterContext, memory: BorrowedMemory) -> Iterator[FaultInjectAdapter]:
    inner = MemoryAdapter(MemorySettings(), context)
    scratch = memory.lend(OBJECT_BYTES)
    faulty = FaultInjectAdapter(context, inner, FaultPlan(), delay_seconds=0.2, scratch=scratch)
    yield faulty
    faulty.close(5)


@pytest.fixture
def driver(faulty: FaultInjectAdapter) -> L2Driver:
    return L2Driver(faulty, wait_seconds=5)


def whole(memory: BorrowedMemory, number: int = 1) -> tuple[Any, Any]:
    key = object_key(number)
    return key, memory.sealed(key, payload_of(number, PAYLOAD_BYTES))


def opened(context: AdapterContext, **settings: Any) -> FaultInjectAdapter:
    given = {"inner": {"type": "memory"}, **settings}
    return open_fault_inject(validate(FaultInjectSettings, given, "fault_inject"), context)


@pytest.mark.parametrize("verb", ["store", "load", "delete"])
def test_an_error_has_done_nothing(
    faulty: FaultInjectAdapter, driver: L2Driver, memory: BorrowedMemory, verb: Verb
) -> None:
    driver.store(whole(memory))
    buffer = memory.lend(OBJECT_BYTES)
    untouched = bytes(buffer.view)
    faulty.plan.cue(verb, Fault.ERROR)
    jobs = {
        "store": lambda: driver.store(whole(memory, 2)),
        "load": lambda: driver.load((KEY, buffer)),
        "delete": lambda: driver.delete(KEY),
    }
    assert jobs[verb]() == (FAILED,)
    assert driver.has(KEY, OTHER) == (DONE, MISSING)
    assert bytes(buffer.view) == untouched


def test_a_lookup_that_fails_leaves_no_pin(
    faulty: FaultInjectAdapter, driver: L2Driver, memory: BorrowedMemory
) -> None:
    driver.store(whole(memory))
    faulty.plan.cue("lookup", Fault.ERROR)
    assert driver.lookup(KEY) == (FAILED,)
    assert driver.delete(KEY) == (DONE,)


@pytest.mark.parametrize("fault", [Fault.TORN, Fault.SHORT, Fault.CORRUPT])
def test_a_store_that_changes_bytes_says_done_and_fails_the_check(
    faulty: FaultInjectAdapter, driver: L2Driver, memory: BorrowedMemory, fault: Fault
) -> None:
    item = whole(memory)
    given = bytes(item[1].view)
    faulty.plan.cue("store", fault)
    assert driver.store(item) == (DONE,)
    assert bytes(item[1].view) == given, "the borrowed bytes were changed"
    assert driver.verified_load((KEY, memory.lend(OBJECT_BYTES))) == (DAMAGED,)
    assert driver.has(KEY) == (MISSING,)
    assert driver.store(item) == (DONE,), "what is wrong is in the way"
    assert driver.verified_load((KEY, memory.lend(OBJECT_BYTES))) == (DONE,)


@pytest.mark.parametrize(
    ("fault", "wrong"), [(Fault.TORN, OBJECT_BYTES - OBJECT_BYTES // 2), (Fault.SHORT, 512), (Fault.CORRUPT, 1)]
)
def test_a_load_that_changes_bytes_says_done(
    faulty: FaultInjectAdapter, driver: L2Driver, memory: BorrowedMemory, fault: Fault, wrong: int
) -> None:
    item = whole(memory)
    driver.store(item)
    faulty.plan.cue("load", fault)
    buffer = memory.lend(OBJECT_BYTES)
    assert driver.load((KEY, buffer)) == (DONE,)
    differing = sum(a != b for a, b in zip(buffer.view, item[1].view, strict=True))
    assert 0.9 * wrong <= differing <= wrong
    assert driver.verified_load((KEY, memory.lend(OBJECT_BYTES))) == (DONE,), "the object itself was changed"


def test_a_store_that_is_too_large_to_be_changed_fails(context: AdapterContext, memory: BorrowedMemory) -> None:
    faulty = opened(context, store={"torn": 1.0}, altered_max_mb=OBJECT_BYTES / 2**21)
    assert L2Driver(faulty).store(whole(memory)) == (FAILED,)
    faulty.close(5)


def test_one_that_stalls_is_done_when_it_is_resumed(
    faulty: FaultInjectAdapter, driver: L2Driver, memory: BorrowedMemory
) -> None:
    faulty.plan.cue("store", Fault.STALL)
    job = driver.submit_store([whole(memory)])
    assert driver.has(KEY) == (MISSING,)
    assert driver.answers()[job] == 0
    faulty.resume()
    assert driver.finish(job) == (DONE,)
    assert driver.has(KEY) == (DONE,)


def test_what_stalls_when_it_closes_is_failed_and_released(
    faulty: FaultInjectAdapter, driver: L2Driver, memory: BorrowedMemory
) -> None:
    faulty.plan.cue("store", Fault.STALL)
    job = driver.submit_store([whole(memory)])
    driver.close(1)
    assert driver.done(job).outcomes == (FAILED,)
    assert driver.done(job).released


def test_what_is_with_a_slow_backend_when_it_closes_is_failed_and_released(
    context: AdapterContext, memory: BorrowedMemory
) -> None:
    faulty = opened(context, inner=mock(1, 1000))
    driver = L2Driver(faulty)
    jobs = [driver.submit_store([whole(memory, number)]) for number in range(3)]
    driver.close(0.4)
    for job in jobs:
        assert driver.finish(job) == (FAILED,)
        driver.wait_released(job)


def test_a_lost_answer_never_comes_until_it_is_found(
    faulty: FaultInjectAdapter, driver: L2Driver, memory: BorrowedMemory
) -> None:
    faulty.plan.cue("store", Fault.LOST)
    job = driver.submit_store([whole(memory)])
    while faulty.inner.usage() != (OBJECT_BYTES, 2**30, 1):
        time.sleep(0.001)
    assert driver.has(KEY) == (DONE,)
    driver.close(5)
    assert driver.answers()[job] == 0
    faulty.find()
    assert driver.finish(job) == (DONE,)


def test_a_delay_takes_its_time(faulty: FaultInjectAdapter, driver: L2Driver) -> None:
    faulty.plan.cue("lookup", Fault.DELAY)
    start = time.monotonic()
    assert driver.has(KEY) == (MISSING,)
    assert time.monotonic() - start >= 0.2


@pytest.mark.parametrize(
    ("error_as", "outcome"), [("ENOSPC", FAILED), ("EROFS", FAILED), ("rejected", Outcome.REJECTED), ("failed", FAILED)]
)
def test_errors_are_those_that_were_asked_for(
    context: AdapterContext,
    memory: BorrowedMemory,
    error_as: str,
    outcome: Outcome,
    caplog: pytest.LogCaptureFixture,
) -> None:
    faulty = opened(context, store={"error": 1.0, "error_as": error_as})
    assert L2Driver(faulty).store(whole(memory)) == (outcome,)
    faulty.close(5)
    assert ("(injected)" in caplog.text) is error_as.isupper()


def test_a_backend_that_only_fails_opens_the_circuit_and_one_that_is_back_closes_it(
    faulty: FaultInjectAdapter, driver: L2Driver, memory: BorrowedMemory
) -> None:
    driver.store(whole(memory))
    faulty.plan.change("load", {Fault.ERROR: 1.0})
    for _ in range(10):
        assert driver.load((KEY, memory.lend(OBJECT_BYTES))) == (FAILED,)
    assert faulty.circuit.state.value == "open"
    faulty.plan.change("load", {})
    deadline = time.monotonic() + 20
    while driver.load((KEY, memory.lend(OBJECT_BYTES))) != (DONE,):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert faulty.circuit.state.value == "closed"


def test_one_seed_draws_the_same_faults_in_whatever_order_objects_come() -> None:
    chances: Mapping[Verb, Mapping[Fault, float]] = {"load": {Fault.ERROR: 0.25, Fault.TORN: 0.25, Fault.LOST: 0.1}}
    keys = [object_key(number) for number in range(200)]
    plans = [FaultPlan(chances, seed) for seed in (1, 1, 2)]
    orders = (keys, keys[::-1], keys)
    drawn = [{key: plan.take("load", key) for key in order} for plan, order in zip(plans, orders, strict=True)]
    assert drawn[0] == drawn[1] != drawn[2]
    faults = list(drawn[0].values())
    assert {faults.count(fault) // 30 for fault in (Fault.ERROR, Fault.TORN)} == {1}
    assert faults.count(None) > 70
    assert [plans[0].take("load", key) for key in keys] != faults, "the second time is another draw"
    lost = [[plan.loses("load", key) for key in keys] for plan in plans]
    assert lost[0] == lost[1] != lost[2]
    assert 5 < sum(lost[0]) < 40


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"store": {"error": 0.7, "torn": 0.5}}, "add up to 1.2"),
        ({"store": {"error_as": "EWHAT"}}, "errno"),
        ({"lookup": {"torn": 0.1}}, "torn"),
        ({"lookup": {"error_as": "failed"}}, "missing"),
        ({"load": {"stall": 1.5}}, "1"),
        ({"inner": {"type": "memory", "size": 1}}, "no field is called 'size'"),
        ({"inner": {"type": "nothing"}}, "nothing"),
        ({"inner": {"type": "memory", "eviction": {"eviction_policy": "LRU"}}}, "belongs beside 'inner'"),
    ],
)
def test_what_cannot_be_is_said(context: AdapterContext, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        opened(context, **settings)


def test_impossible_chances_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 1 together"):
        FaultPlan({"load": {Fault.ERROR: 0.7, Fault.STALL: 0.5}})
    with pytest.raises(ValueError, match="load: the chances"):
        FaultPlan().change("load", {Fault.LOST: -0.1})


def test_a_server_can_be_given_one_around_any_adapter(
    context: AdapterContext, memory: BorrowedMemory, caplog: pytest.LogCaptureFixture
) -> None:
    plugins = load_plugins()
    offer = plugins.offer("l2_adapter", "fault_inject")
    settings = validate(FaultInjectSettings, {"inner": injected(verbs=["store"], error=1.0)}, "outer")
    adapter = open_adapter(offer.name, settings, plugins, context)
    assert adapter.capabilities == OF_MEMORY
    assert "other capabilities" not in caplog.text
    assert L2Driver(adapter).store(whole(memory)) == (FAILED,)
    adapter.close(5)
