"""What the adapter makes of answers that a real store gives only now and then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from lmcache_core import BuffersReleased, Clock, ObjectKey, Outcome, SystemClock, Usage
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key, payload_of
from lmcache_devkit.fake_clock import FakeClock
from lmcache_devkit.l2_driver import L2Driver
from lmcache_l2_mooncake import adapter as module
from lmcache_l2_mooncake import link
from lmcache_l2_mooncake.adapter import OVERDUE_SECONDS, MooncakeAdapter
from lmcache_l2_mooncake.codes import Code
from lmcache_l2_mooncake.config import MooncakeSettings
from lmcache_l2_mooncake.listing import HeaderPages
from lmcache_l2_mooncake.master import MasterHttp
from plugins.l2_mooncake.tests.fake_client import FakeStores

DONE, MISSING, FAILED, TIMED_OUT = Outcome.DONE, Outcome.MISSING, Outcome.FAILED, Outcome.TIMED_OUT
KEY = object_key(1)

Opened = Callable[..., MooncakeAdapter]


@pytest.fixture
def stores() -> FakeStores:
    return FakeStores()


@pytest.fixture
def open_fake(stores: FakeStores, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    monkeypatch.setattr(link, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(module, "is_reachable", lambda address: True)
    opened: list[MooncakeAdapter] = []

    def open_fake(clock: Clock | None = None, timeout_seconds: float = 20.0) -> MooncakeAdapter:
        settings = MooncakeSettings(local_hostname="here")
        context = adapter_context(memory, name="mooncake", clock=clock or SystemClock())
        opened.append(MooncakeAdapter(settings, context, stores.open, HeaderPages(), HeaderPages(), timeout_seconds))
        return opened[-1]

    yield open_fake
    for each in opened:
        each.close(10)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (Code.OBJECT_ALREADY_EXISTS, DONE), (Code.NO_AVAILABLE_HANDLE, Outcome.REJECTED),
        (Code.BUFFER_OVERFLOW, Outcome.REJECTED), (Code.TRANSFER_FAIL, FAILED), (Code.RPC_FAIL, FAILED), (-4711, FAILED),
    ],
)  # fmt: skip
def test_each_answer_to_a_store_is_an_outcome(
    open_fake: Opened, stores: FakeStores, memory: BorrowedMemory, code: int, outcome: Outcome
) -> None:
    driver = L2Driver(open_fake())
    stores.last.answers["put"] = code
    assert driver.store((KEY, memory.sealed(KEY, b"x" * 100))) == (outcome,)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (Code.OBJECT_NOT_FOUND, MISSING), (Code.REPLICA_IS_NOT_READY, MISSING), (Code.REPLICA_NOT_FOUND, MISSING),
        (Code.REPLICA_IS_GONE, MISSING), (Code.LEASE_EXPIRED, FAILED), (Code.TRANSFER_FAIL, FAILED),
        (Code.RPC_TIMEOUT, FAILED), (0, Outcome.DAMAGED), (50, Outcome.DAMAGED), (10**9, Outcome.DAMAGED), (-4711, FAILED),
    ],
)  # fmt: skip
def test_each_answer_to_a_load_is_an_outcome(
    open_fake: Opened, stores: FakeStores, memory: BorrowedMemory, code: int, outcome: Outcome
) -> None:
    driver = L2Driver(open_fake())
    stores.last.answers["get"] = code
    assert driver.load((KEY, memory.lend(5000))) == (outcome,)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (0, DONE), (Code.OBJECT_NOT_FOUND, MISSING), (Code.OBJECT_HAS_LEASE, Outcome.REJECTED),
        (Code.OBJECT_HAS_REPLICATION_TASK, Outcome.REJECTED), (Code.RPC_FAIL, FAILED),
    ],
)  # fmt: skip
def test_each_answer_to_a_delete_is_an_outcome(
    open_fake: Opened, stores: FakeStores, code: int, outcome: Outcome
) -> None:
    driver = L2Driver(open_fake())
    stores.last.answers["remove"] = code
    assert driver.delete(KEY) == (outcome,)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [(1, DONE), (0, MISSING), (Code.OBJECT_NOT_FOUND, MISSING), (-1, FAILED), (Code.RPC_FAIL, FAILED)],
)
def test_each_answer_to_a_lookup_is_an_outcome(
    open_fake: Opened, stores: FakeStores, code: int, outcome: Outcome
) -> None:
    driver = L2Driver(open_fake())
    stores.last.answers["exist"] = code
    assert driver.has(KEY) == (outcome,)


def test_a_lease_that_ran_out_is_tried_again(open_fake: Opened, stores: FakeStores, memory: BorrowedMemory) -> None:
    driver = L2Driver(open_fake())
    stored = memory.sealed(KEY, payload_of(1, 100))
    assert driver.store((KEY, stored)) == (DONE,)
    attempts: list[str] = []

    def once(method: str) -> None:
        attempts.append(method)
        if len(attempts) == 2:
            del stores.last.answers["get"]

    stores.last.answers["get"] = Code.LEASE_EXPIRED
    stores.last.before = once
    assert driver.load((KEY, memory.lend(stored.length))) == (DONE,)
    assert attempts == ["get", "get"]


def test_a_shorter_object_fills_the_start_of_a_buffer_that_may_be_longer(
    open_fake: Opened, memory: BorrowedMemory
) -> None:
    driver = L2Driver(open_fake())
    stored = memory.sealed(KEY, payload_of(1, 100))
    assert driver.store((KEY, stored)) == (DONE,)
    longer = memory.lend(3 * 4096)._replace(at_most=True)
    assert driver.load((KEY, longer)) == (DONE,)
    assert longer.view[: stored.length] == stored.view
    assert driver.load((KEY, memory.lend(3 * 4096))) == (Outcome.DAMAGED,)


def test_a_longer_object_is_damaged_and_one_that_went_meanwhile_is_missing(
    open_fake: Opened, stores: FakeStores, memory: BorrowedMemory
) -> None:
    driver = L2Driver(open_fake())
    assert driver.store((KEY, memory.sealed(KEY, payload_of(1, 5000)))) == (DONE,)
    stores.last.answers["size"] = Code.OBJECT_NOT_FOUND
    assert driver.load((KEY, memory.lend(4096))) == (MISSING,)
    del stores.last.answers["size"]
    assert driver.load((KEY, memory.lend(4096))) == (Outcome.DAMAGED,)


LONG = 600_000
"""Of which no part that is read at a time is the whole."""


@pytest.fixture
def stored(open_fake: Opened, stores: FakeStores, memory: BorrowedMemory) -> L2Driver:
    driver = L2Driver(open_fake())
    assert driver.store((KEY, memory.sealed(KEY, payload_of(1, LONG)))) == (DONE,)
    return driver


def test_a_good_object_that_came_altered_stays(stored: L2Driver, stores: FakeStores) -> None:
    stored.adapter.reject(KEY, Outcome.DAMAGED)
    wait_for(lambda: stored.has(KEY) == (DONE,))
    assert "remove" not in [method for method, _ in stores.last.calls]
    stored.adapter.reject(KEY, Outcome.DAMAGED)  # and once more, whatever its fault
    wait_for(lambda: not stores.last.objects)


@pytest.mark.parametrize("at", [4000, 5000, LONG])
def test_one_that_is_damaged_in_the_store_is_removed(stored: L2Driver, stores: FakeStores, at: int) -> None:
    ((name, data),) = stores.last.objects.items()
    stores.last.objects[name] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    stored.adapter.reject(KEY, Outcome.DAMAGED)
    wait_for(lambda: not stores.last.objects)


@pytest.mark.parametrize("method", ["size", "part"])
def test_a_lost_master_is_not_proof_of_damage(stored: L2Driver, stores: FakeStores, method: str) -> None:
    stores.last.answers[method] = Code.RPC_FAIL
    stored.adapter.reject(KEY, Outcome.DAMAGED)
    wait_for(lambda: stores.last.calls[-1][0] == method)
    assert stored.has(KEY) == (MISSING,)
    assert len(stores.last.objects) == 1
    del stores.last.answers[method]
    stored.adapter.reject(KEY, Outcome.DAMAGED)
    wait_for(lambda: stored.has(KEY) == (DONE,))


def test_one_of_another_length_is_removed_at_once(stored: L2Driver, stores: FakeStores, memory: BorrowedMemory) -> None:
    assert stored.verified_load((KEY, memory.lend(LONG))) == (Outcome.DAMAGED,)
    wait_for(lambda: not stores.last.objects)


def test_the_store_is_left_though_the_masters_http_hangs(
    stores: FakeStores, memory: BorrowedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def hang(self: MasterHttp) -> Usage:
        asked.set()
        answer.wait(30)
        return Usage(0, None, 0)

    monkeypatch.setattr(MasterHttp, "usage", hang)
    settings = MooncakeSettings(local_hostname="here", master_metrics_url="http://127.0.0.1:1")
    context = adapter_context(memory, name="mooncake")
    adapter = MooncakeAdapter(settings, context, stores.open, HeaderPages(), HeaderPages())
    try:
        assert asked.wait(30)
        adapter.close(0.1)
        assert stores.last.closed.wait(0)
    finally:
        answer.set()


def test_what_comes_together_is_one_call(open_fake: Opened, stores: FakeStores) -> None:
    driver = L2Driver(open_fake())
    assert driver.has(*(object_key(number) for number in range(50))) == (MISSING,) * 50
    asked = [count for method, count in stores.last.calls if method == "exist"]
    assert sum(asked) == 50
    assert len(asked) < 10


def test_a_transfer_that_was_abandoned_late_keeps_its_buffer_until_the_client_is_closed(
    open_fake: Opened, stores: FakeStores, memory: BorrowedMemory
) -> None:
    clock = FakeClock()
    adapter = open_fake(clock, timeout_seconds=0.2)
    driver = L2Driver(adapter)
    first = stores.last
    bystander_is_in, bystander_may_go = threading.Event(), threading.Event()

    def before(method: str) -> None:
        if method == "get":
            clock.advance(OVERDUE_SECONDS + 1)
        elif method == "put":
            bystander_is_in.set()
            bystander_may_go.wait(30)

    first.before = before
    first.answers["get"] = Code.TRANSFER_FAIL
    other = driver.submit_store([(object_key(2), memory.sealed(object_key(2), b"y"))])
    assert bystander_is_in.wait(30)
    job = driver.submit_load([(KEY, memory.lend(5000))])
    assert driver.done(job).outcomes == (TIMED_OUT,)
    assert not driver.released(job)
    assert not first.closed.is_set()  # a call of another runs in it
    bystander_may_go.set()
    driver.wait_released(job)
    assert first.closed.is_set()
    driver.wait_released(other)
    wait_for(lambda: adapter.counters() == {"memberships_renewed": 1, "transfers_overdue": 1})
    assert stores.last is not first
    stored = memory.sealed(object_key(3), b"z")
    assert driver.store((object_key(3), stored)) == (DONE,)


def test_a_transfer_that_failed_soon_has_ended(open_fake: Opened, stores: FakeStores, memory: BorrowedMemory) -> None:
    driver = L2Driver(open_fake(FakeClock()))
    stores.last.answers["get"] = Code.TRANSFER_FAIL
    job = driver.submit_load([(KEY, memory.lend(5000))])
    assert driver.done(job).outcomes == (FAILED,)
    assert BuffersReleased(job) not in driver.seen
    assert len(stores.opened) == 1


def test_nothing_is_asked_while_the_master_is_known_to_be_lost(open_fake: Opened, stores: FakeStores) -> None:
    adapter = open_fake(FakeClock())
    driver = L2Driver(adapter)
    store = stores.last
    store.healthy = 2
    wait_for(lambda: not adapter._link.healthy)
    store.calls.clear()
    assert driver.has(KEY) == (FAILED,)
    assert store.calls == []
    store.healthy = 0
    wait_until_healthy(adapter)
    assert driver.has(KEY) == (MISSING,)


def test_a_member_that_its_master_forgot_for_good_joins_again(open_fake: Opened, stores: FakeStores) -> None:
    clock = FakeClock()
    adapter = open_fake(clock)
    first = stores.last
    first.healthy = 2
    wait_for(lambda: not adapter._link.healthy)
    clock.advance(link.RENEW_SECONDS + 1)
    assert first.closed.wait(30)
    wait_until_healthy(adapter)
    assert len(stores.opened) == 2


def test_an_object_lies_under_a_name_of_its_whole_key(
    open_fake: Opened, stores: FakeStores, memory: BorrowedMemory
) -> None:
    driver = L2Driver(open_fake())
    other = ObjectKey(replace(KEY.space, cache_salt="another"), KEY.chunk_hash)
    assert driver.store((KEY, memory.sealed(KEY, b"x"))) == (DONE,)
    (name,) = stores.last.objects
    assert name.endswith(f"{KEY.object_id.hex()}.kv")
    assert driver.has(other) == (MISSING,)


def wait_until_healthy(adapter: MooncakeAdapter) -> None:
    wait_for(lambda: adapter._link.healthy)


def wait_for(condition: Callable[[], bool]) -> None:
    ticks = threading.Event()
    assert any(condition() or ticks.wait(0.01) for _ in range(3000)), "it did not come true within 30 s"
