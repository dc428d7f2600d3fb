"""What a server sees of a master that dies, hangs, comes back, or has no room."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from demo.server_process import HOST
from lmcache_core import Outcome, ResourceError
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key, payload_of
from lmcache_devkit.l2_driver import L2Driver
from lmcache_l2_mooncake.adapter import MooncakeAdapter
from lmcache_l2_mooncake.config import MooncakeSettings
from lmcache_l2_mooncake.listing import HeaderPages
from lmcache_l2_mooncake.store_client import StoreClient
from tests.remote.mooncake_master import LoopbackNamespace, MooncakeMaster, setup_of

OpenMooncake = Callable[..., MooncakeAdapter]

DONE, MISSING, REJECTED = Outcome.DONE, Outcome.MISSING, Outcome.REJECTED
PAYLOAD = 100_000
BACK_SECONDS = 90.0
MIB = 1 << 20


@pytest.fixture
def own_master(inside: None, tmp_path: Path) -> Iterator[MooncakeMaster]:
    """One that a test may kill."""
    master = MooncakeMaster(tmp_path)
    master.start()
    yield master
    master.kill()


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + BACK_SECONDS
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {BACK_SECONDS:g} s"
        time.sleep(0.05)


def test_a_master_that_dies_costs_misses_and_one_that_is_back_serves(
    open_here: OpenMooncake, own_master: MooncakeMaster, memory: BorrowedMemory
) -> None:
    adapter = open_here(own_master, global_segment_size=64 * MIB)
    driver = L2Driver(adapter)
    keys = [object_key(number) for number in range(3)]
    items = [(key, memory.sealed(key, payload_of(number, PAYLOAD))) for number, key in enumerate(keys)]
    assert driver.store(*items) == (DONE,) * 3
    own_master.kill()
    into = [(key, memory.lend(items[0][1].length)) for key in keys]
    assert set(driver.load(*into)) <= {Outcome.FAILED, Outcome.TIMED_OUT}
    assert set(driver.has(*keys)) <= {Outcome.FAILED, Outcome.TIMED_OUT}
    assert all(driver.released(done.job) for done in driver.seen)
    own_master.start()
    # What it knew went with it, and is stored again.
    until(lambda: driver.store(*items) == (DONE,) * 3, "storing after the master's return")
    assert driver.load(*into) == (DONE,) * 3
    assert [bytes(buffer.view) for _, buffer in into] == [bytes(buffer.view) for _, buffer in items]


def test_a_master_that_hangs_is_a_time_out_and_the_buffers_come_back_when_it_goes_on(
    own_master: MooncakeMaster, memory: BorrowedMemory, caplog: pytest.LogCaptureFixture
) -> None:
    settings = MooncakeSettings(local_hostname=HOST, master_server_addr=own_master.address)
    setup = setup_of(own_master, 64 * MIB)
    context = adapter_context(memory, name="mooncake")

    def joined() -> StoreClient:
        return StoreClient.open(setup, (), needs_memory=False, logger=context.logger)

    adapter = MooncakeAdapter(settings, context, joined, HeaderPages(), HeaderPages(), operation_timeout_seconds=1.0)
    driver = L2Driver(adapter)
    key = object_key(1)
    stored = memory.sealed(key, payload_of(1, PAYLOAD))
    assert driver.store((key, stored)) == (DONE,)
    own_master.process.pause()
    try:
        job = driver.submit_load([(key, memory.lend(stored.length))])
        assert driver.done(job).outcomes == (Outcome.TIMED_OUT,)
        assert not driver.released(job)
    finally:
        own_master.process.resume()
    driver.wait_released(job)
    again = memory.lend(stored.length)
    until(lambda: driver.load((key, again)) == (DONE,), "loading after the master goes on")
    assert bytes(again.view) == bytes(stored.view)
    adapter.close(30)


def test_a_good_object_that_came_altered_is_read_again_and_stays(
    open_here: OpenMooncake, own_master: MooncakeMaster, memory: BorrowedMemory
) -> None:
    driver = L2Driver(open_here(own_master, global_segment_size=64 * MIB))
    key = object_key(1)
    stored = memory.sealed(key, payload_of(1, 7 * PAYLOAD))  # more than is read again at a time
    assert driver.store((key, stored)) == (DONE,)
    driver.adapter.reject(key, Outcome.DAMAGED)
    until(lambda: driver.has(key) == (DONE,), "offering it again")
    assert driver.verified_load((key, memory.lend(stored.length))) == (DONE,)


def test_what_mooncake_evicts_by_itself_is_a_miss_and_never_wrong(
    open_here: OpenMooncake, own_master: MooncakeMaster
) -> None:
    memory = BorrowedMemory(320 * MIB)
    driver = L2Driver(open_here(own_master, global_segment_size=64 * MIB))
    keys = [object_key(number) for number in range(32)]
    outcomes = [
        driver.store((key, memory.sealed(key, payload_of(number, 4 * MIB))))[0] for number, key in enumerate(keys)
    ]
    assert set(outcomes) <= {DONE, REJECTED}
    assert len(keys) * 4 * MIB > 64 * MIB
    loads = []
    for number, key in enumerate(keys):
        buffer = memory.lend(4096 + 4 * MIB)
        loads.append(driver.verified_load((key, buffer))[0])
        assert loads[-1] is not DONE or buffer.view[4096:] == payload_of(number, 4 * MIB)
    assert set(loads) == {DONE, MISSING}


@pytest.mark.slow
def test_a_membership_that_was_left_is_joined_again(
    open_here: OpenMooncake, master: MooncakeMaster, memory: BorrowedMemory
) -> None:
    adapter = open_here(master)
    driver = L2Driver(adapter)
    key = object_key(7)
    stored = memory.sealed(key, payload_of(7, PAYLOAD))
    assert driver.store((key, stored)) == (DONE,)
    adapter._loop.call_soon_threadsafe(adapter._link.give_up, "a test wants it")
    until(lambda: adapter.counters()["memberships_renewed"] == 1, "joining again")
    into = memory.lend(stored.length)
    until(lambda: driver.load((key, into)) == (DONE,), "loading what another member holds")
    assert bytes(into.view) == bytes(stored.view)
    assert driver.delete(key) == (DONE,)


def test_without_a_master_nothing_is_opened(
    open_here: OpenMooncake, namespace: LoopbackNamespace, tmp_path: Path
) -> None:
    never_started = MooncakeMaster(tmp_path)
    with pytest.raises(ResourceError, match=r"nothing listens at 127\.0\.0\.1:\d+.*mooncake_master"):
        open_here(never_started)


def test_a_master_that_is_none_is_refused(open_here: OpenMooncake, master: MooncakeMaster) -> None:
    with pytest.raises(ResourceError, match=r"could not join the store of master.*INVALID_PARAMS"):
        open_here(master, local_buffer_size=1)


def test_it_listens_nowhere_outside_of_the_tests_network(open_here: OpenMooncake, master: MooncakeMaster) -> None:
    """The tests hold themselves to what they say: only a loopback interface is there."""
    open_here(master)
    assert [name for _, name in socket.if_nameindex()] == ["lo"]
