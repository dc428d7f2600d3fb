"""An adapter is on its way out, and stalls, keeps buffers, blocks or raises: it is removed all the same, and no other waits."""

from __future__ import annotations

import threading
import time

import pytest

from core.tests.injected import FAULT_INJECT, injected
from core.tests.server.changing_server import (
    CHUNKS,
    MEMORY,
    StartServer,
    nothing_is_left,
    prompt,
    read_back,
    state_of,
    still_there,
    store_in_l2,
)
from core.tests.server.test_controller_faults import trip, wait_for
from lmcache_core.contracts.server_control import NotNowError
from lmcache_core.controllers import adapter_removal
from lmcache_core.controllers.adapter_removal import AdapterRemoval, AdapterStage
from lmcache_core.controllers.store import StoreController
from lmcache_core.controllers.store_queue import StoreJob
from lmcache_core.controllers.supervisor import Supervisor
from lmcache_devkit import Fault, FaultInjectAdapter
from lmcache_devkit.fake_engine import FakeEngine


def test_a_stalled_adapter_is_removed_within_its_deadline(start: StartServer) -> None:
    server = start(injected(stall=1.0), MEMORY)
    adapters = server._parts.adapters
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(prompt(1))
        wait_for(lambda: server.status()["store"]["adapters"]["memory"]["stored"] == CHUNKS)
        assert adapters.state(FAULT_INJECT).objects_left == CHUNKS
        engine.scheduler.clear()
        started = time.monotonic()
        adapters.remove(FAULT_INJECT, 0.3, False)
        wait_for(lambda: state_of(server, FAULT_INJECT) == "removed")
        assert time.monotonic() - started < 8
        gone = adapters.state(FAULT_INJECT)
        assert (gone.drained, gone.objects_left, gone.borrowed_bytes) == (False, 0, 0)
        assert gone.abandoned == CHUNKS
        nothing_is_left(server)
        engine.scheduler.clear()
        assert read_back(engine, prompt(1), "next") == CHUNKS


def test_a_lookup_goes_on_with_another_adapter_when_its_own_is_removed(start: StartServer) -> None:
    server = start(injected(), MEMORY)
    faulty = server._parts.tiers.l2.clients[0].adapter
    assert isinstance(faulty, FaultInjectAdapter)
    with FakeEngine(server.info.engine_endpoint) as engine:
        store_in_l2(engine, server, prompt(1))
        for verb in ("lookup", "load"):
            faulty.plan.change(verb, {Fault.STALL: 1.0})
        key = engine.key(prompt(1), "r", 0, CHUNKS * 16, of_worker=False)
        found: list[int] = []
        asking = threading.Thread(target=lambda: found.append(engine.scheduler.lookup_hits(key)), daemon=True)
        asking.start()
        wait_for(lambda: server._parts.tiers.l2.clients[0].jobs.unanswered > 0)
        server._parts.adapters.remove(FAULT_INJECT, 0.0, False)
        asking.join(10)
        assert found == [CHUNKS]
        assert engine.retrieve(prompt(1), "r") == [engine.content(prompt(1), chunk) for chunk in range(CHUNKS)]
        engine.end("r")
        wait_for(lambda: state_of(server, FAULT_INJECT) == "removed")
        nothing_is_left(server)


def test_what_an_adapter_keeps_stays_quarantined_until_it_releases_it(
    start: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_removal, "LINGER_SECONDS", 0.1)
    server = start(injected(lost=1.0))
    adapters, port = server._parts.adapters, server._parts.tiers.l2.clients[0]
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(prompt(1))
        wait_for(lambda: port.borrowed_bytes > 0)
        adapters.remove(FAULT_INJECT, 60.0, force=True)
        wait_for(lambda: state_of(server, FAULT_INJECT) == "lingering")
        assert server.status()["l1"]["quarantined"] == CHUNKS
        assert adapters.state(FAULT_INJECT).borrowed_bytes > 0
        assert server.status()["healthy"]
        assert adapters.add(injected()).name == f"{FAULT_INJECT}-2", "the name is not free before it is gone"
        engine.scheduler.clear(True)
        assert isinstance(port.adapter, FaultInjectAdapter)
        port.adapter.find()
        wait_for(lambda: state_of(server, FAULT_INJECT) == "removed")
        nothing_is_left(server)


def test_an_adapter_that_blocks_its_close_blocks_no_other(start: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(MEMORY)
    adapters, resume = server._parts.adapters, threading.Event()
    close = server._parts.tiers.l2.clients[0].adapter.close
    monkeypatch.setattr(
        server._parts.tiers.l2.clients[0].adapter, "close", lambda seconds: (resume.wait(30), close(seconds))
    )
    adapters.remove("memory", 1.0, False)
    wait_for(lambda: state_of(server, "memory") == "closing")
    assert adapters.add(MEMORY).name == "memory-2"
    with pytest.raises(NotNowError, match="'memory' is being removed"):
        adapters.drain("memory")
    with FakeEngine(server.info.engine_endpoint) as engine:
        store_in_l2(engine, server, prompt(1))
        assert read_back(engine, prompt(1), "a") == CHUNKS
    resume.set()
    wait_for(lambda: state_of(server, "memory") == "removed")


@pytest.mark.parametrize("method", ["_is_drained", "_made", "_has_released"])
def test_a_removal_that_trips_goes_on(start: StartServer, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    server = start(MEMORY)
    tripped = trip(AdapterRemoval, method, monkeypatch)
    server._parts.adapters.remove("memory", 1.0, False)
    wait_for(lambda: state_of(server, "memory") == "removed")
    assert tripped
    assert server._parts.tiers.l2.clients == ()


def test_more_force_ends_a_removal_sooner(start: StartServer) -> None:
    server = start(injected(stall=1.0))
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(prompt(1))
        adapters = server._parts.adapters
        adapters.remove(FAULT_INJECT, 3600.0, False)
        wait_for(lambda: adapters.state(FAULT_INJECT).objects_left == CHUNKS)
        assert state_of(server, FAULT_INJECT) == "draining"
        left = adapters.remove(FAULT_INJECT, 60.0, False).seconds_left
        assert left is not None
        assert left <= 60.0
        adapters.remove(FAULT_INJECT, 3600.0, True)
        wait_for(lambda: state_of(server, FAULT_INJECT) == "removed")
    nothing_is_left(server)


def test_an_adapter_can_be_gone_before_its_slots_are_back(start: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter client hears of the release first; the store controller, which references the slots, may be slow."""
    resume, release = threading.Event(), StoreController._release

    def release_late(self: StoreController, job: StoreJob) -> None:
        resume.wait(30)
        release(self, job)

    server = start(injected(stall=1.0))
    monkeypatch.setattr(StoreController, "_release", release_late)
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(prompt(1))
        wait_for(lambda: server._parts.tiers.l2.clients[0].borrowed_bytes > 0)
        server._parts.adapters.remove(FAULT_INJECT, 0.0, True)
        wait_for(lambda: state_of(server, FAULT_INJECT) == "removed")
        assert server._parts.adapters.state(FAULT_INJECT).borrowed_bytes == 0
        assert still_there(server)["quarantined"] == CHUNKS
    soon = threading.Timer(0.1, resume.set)
    soon.start()
    nothing_is_left(server)
    soon.join()


def test_the_server_stops_in_the_middle_of_a_removal(start: StartServer) -> None:
    server = start(injected(stall=1.0), MEMORY)
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(prompt(1))
        server._parts.adapters.remove(FAULT_INJECT, 3600.0, False)
        wait_for(lambda: server.status()["store"]["adapters"]["memory"]["stored"] == CHUNKS)
    started = time.monotonic()
    assert not server.stop(0.2)
    assert time.monotonic() - started < 10
    with pytest.raises(NotNowError, match="the server is stopping"):
        server._parts.adapters.add(MEMORY)


def test_it_is_removed_once_its_name_is_free(start: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(MEMORY)
    (adapter,) = server._parts.tiers.l2.adapters
    go_on, dismiss = threading.Event(), Supervisor.dismiss

    def late(supervisor: Supervisor, name: str, seconds: float) -> bool:
        go_on.wait(10)
        return dismiss(supervisor, name, seconds)

    monkeypatch.setattr(Supervisor, "dismiss", late)
    server._parts.adapters.remove("memory", 1.0, False)
    wait_for(lambda: adapter.removal is not None and adapter.removal.state is AdapterStage.REMOVED)
    assert state_of(server, "memory") == "closing"
    go_on.set()
    wait_for(lambda: state_of(server, "memory") == "removed")
    assert server._parts.adapters.add(MEMORY).name == "memory"
