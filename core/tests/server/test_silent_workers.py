"""A worker that falls silent may be frozen in the middle of a copy: what it may still touch is given away only when it is
known to be gone."""

from __future__ import annotations

import time
from collections.abc import Callable

from core.tests.server.conftest import StartServer
from core.tests.server.test_engine_driven import quiet
from lmcache_client.client import EngineClient
from lmcache_client.messages import LayoutPart, WorkerRegistration
from lmcache_core.app.server import Server
from lmcache_devkit.fake_engine import FakeEngine

TOKENS = list(range(64))
OTHERS = list(range(1000, 1064))
CHUNKS = range(4)
END = 64


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def fall_silent(server: Server, engine: FakeEngine) -> None:
    engine.worker.ping(engine.instance_id)
    wait_until(lambda: all(worker["instance_id"] != engine.instance_id for worker in workers(server)))


def workers(server: Server) -> list[dict[str, object]]:
    found = server.status()["workers"]
    assert isinstance(found, list)
    return found


def quarantined(server: Server) -> int:
    return int(server.status()["l1"]["quarantined"])


def lively(server: Server) -> FakeEngine:
    """A worker that never pings is not taken for dead."""
    engine = FakeEngine(server.info.engine_endpoint)
    engine.register()
    return engine


def announce(engine: FakeEngine, fence_seconds: float) -> None:
    """Register as workers do that keep a fence."""
    layout = engine.layout
    part = LayoutPart(
        layout.kv_axis, layout.layers, layout.slots, layout.hidden, layout.dtype, layout.block_slots, layout.order
    )
    described = WorkerRegistration(engine.instance_id, "model", 1, 0, (part,), fence_seconds)
    engine.worker.unregister_engine_driven(engine.instance_id)
    assert engine.worker.register_worker(described).shm_name


def test_slots_of_a_silent_worker_wait_for_the_end_of_its_connection(start_server: StartServer) -> None:
    server = start_server(worker_reap_timeout_seconds=0.2)
    with FakeEngine(server.info.engine_endpoint) as frozen, lively(server) as other:
        assert other.store(OTHERS)
        reply = frozen.worker.prepare_store(frozen.key(TOKENS, "s", 0, END), frozen.instance_id)
        read = frozen.worker.prepare_retrieve(frozen.key(OTHERS, "r", 0, END), frozen.instance_id)
        fall_silent(server, frozen)
        assert quarantined(server) == 2 * len(CHUNKS)
        other.scheduler.clear(True)
        assert other.store(TOKENS), "another worker may store the same chunks"
        for slot in reply.context.slots:  # type: ignore[union-attr]
            frozen.write(slot, b"\xee" * slot.length)
        seen = [frozen.read(slot) for slot in read.context.slots]  # type: ignore[union-attr]
        assert seen == [other.content(OTHERS, chunk) for chunk in CHUNKS]
        assert other.retrieve(TOKENS) == [other.content(TOKENS, chunk) for chunk in CHUNKS]
        frozen.close()
        wait_until(lambda: not quarantined(server))
        quiet(server)


def test_a_silent_worker_that_commits_after_all_gives_its_slots_back(start_server: StartServer) -> None:
    """With or without a registration of the same instance in between."""
    server = start_server(worker_reap_timeout_seconds=0.2)
    for registers in (False, True):
        with FakeEngine(server.info.engine_endpoint) as thawed, lively(server) as other:
            other.store(OTHERS)
            store, load = thawed.key(TOKENS, "s", 0, END), thawed.key(OTHERS, "r", 0, END)
            assert thawed.worker.prepare_store(store, thawed.instance_id).context.slots
            assert thawed.worker.prepare_retrieve(load, thawed.instance_id).success
            fall_silent(server, thawed)
            assert quarantined(server) == 2 * len(CHUNKS)
            if registers:
                thawed.register()
                assert thawed.worker.prepare_store(store, thawed.instance_id).context.slots == (), "still being written"
            assert thawed.worker.commit_store(store, thawed.instance_id) is False
            assert thawed.worker.commit_retrieve(load, thawed.instance_id)
            assert quarantined(server) == 0
            assert other.lookup(TOKENS) == 0, "nothing was published"
            other.end()
            thawed.worker.unregister_engine_driven(thawed.instance_id)
    quiet(server)


def test_slots_that_a_worker_still_writes_outlast_its_connection(start_server: StartServer) -> None:
    """It has lost the connection, and registers over another one while its thread goes on."""
    server = start_server()
    with FakeEngine(server.info.engine_endpoint) as writer, lively(server) as other:
        writer.worker.ping(writer.instance_id)
        store = writer.key(TOKENS, "s", 0, END)
        given = {slot.offset for slot in writer.worker.prepare_store(store, writer.instance_id).context.slots}  # type: ignore[union-attr]
        registered = server.parts.engine_port.workers
        first = registered.find(writer.instance_id)
        assert first is not None
        writer.worker.close()
        wait_until(lambda: not registered.is_connected(first.connection))
        writer.worker = EngineClient(server.info.engine_endpoint)
        writer.register()
        assert quarantined(server) == len(given) == len(CHUNKS)
        reply = other.worker.prepare_store(other.key(OTHERS, "o", 0, END), other.instance_id)
        assert given.isdisjoint(slot.offset for slot in reply.context.slots)  # type: ignore[union-attr]
        assert writer.worker.prepare_store(store, writer.instance_id).context.slots == (), "still being written"
        assert writer.worker.commit_store(store, writer.instance_id) is False
        assert quarantined(server) == 0


def test_a_silent_worker_that_unregisters_gives_its_slots_back(start_server: StartServer) -> None:
    server = start_server(worker_reap_timeout_seconds=0.2)
    with FakeEngine(server.info.engine_endpoint) as thawed:
        assert thawed.worker.prepare_store(thawed.key(TOKENS, "s", 0, END), thawed.instance_id).context.slots
        fall_silent(server, thawed)
        assert quarantined(server) == len(CHUNKS)
        thawed.worker.unregister_engine_driven(thawed.instance_id)
        quiet(server)


def test_a_fence_ends_the_reads_of_a_silent_worker_and_not_its_writes(start_server: StartServer) -> None:
    """It throws away what it reads too late; what a frozen thread writes cannot be thrown away."""
    server = start_server(worker_reap_timeout_seconds=2.0)
    with FakeEngine(server.info.engine_endpoint) as frozen, lively(server) as other:
        announce(frozen, 0.5)
        assert other.store(OTHERS)
        assert frozen.worker.prepare_store(frozen.key(TOKENS, "s", 0, END), frozen.instance_id).context.slots
        assert frozen.worker.prepare_retrieve(frozen.key(OTHERS, "r", 0, END), frozen.instance_id).success
        fall_silent(server, frozen)
        assert quarantined(server) == len(CHUNKS)
        frozen.close()
        wait_until(lambda: not quarantined(server))
        quiet(server)


def test_a_fence_as_long_as_the_time_out_is_none(start_server: StartServer) -> None:
    server = start_server(worker_reap_timeout_seconds=2.0)
    with FakeEngine(server.info.engine_endpoint) as frozen, lively(server) as other:
        announce(frozen, 2.0)
        assert other.store(OTHERS)
        assert frozen.worker.prepare_retrieve(frozen.key(OTHERS, "r", 0, END), frozen.instance_id).success
        fall_silent(server, frozen)
        assert quarantined(server) == len(CHUNKS)


def test_hello_says_when_a_silent_worker_is_taken_for_dead(start_server: StartServer) -> None:
    server = start_server(worker_reap_timeout_seconds=3.0)
    with FakeEngine(server.info.engine_endpoint) as engine:
        hello = engine.worker.hello("test")
        assert hello is not None
        assert hello.worker_timeout_seconds == 3.0
