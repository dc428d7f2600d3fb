"""A slot has one writer, and no reader's slots are released: whatever else the same worker has open, for requests of one
name or of several.  Stock workers prepare from several threads, and a commit names no prepare."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

from core.tests.server.conftest import StartServer
from core.tests.server.test_engine_driven import quiet
from lmcache_client.layout import ObjectLayout
from lmcache_client.messages import SlotDescriptor
from lmcache_core.app.server import Server
from lmcache_core.contracts.request_module import Worker
from lmcache_core.contracts.storage import SlotReferences
from lmcache_core.server.open_transfers import INSTANCES_MAX, OpenReads, Ticket
from lmcache_devkit.fake_engine import FakeEngine
from lmcache_devkit.stock_pickle import stock_pickle

TOKENS = list(range(64))
OTHERS = list(range(1000, 1064))
CHUNKS = range(4)
END = 64


def prepare_store(engine: FakeEngine, request: str, tokens: Sequence[int] = TOKENS) -> tuple[SlotDescriptor, ...]:
    slots = engine.worker.prepare_store(engine.key(tokens, request, 0, END), engine.instance_id).context.slots
    assert isinstance(slots, tuple)
    return slots


def prepare_retrieve(engine: FakeEngine, request: str) -> tuple[SlotDescriptor, ...] | None:
    """None is a miss."""
    reply = engine.worker.prepare_retrieve(engine.key(TOKENS, request, 0, END), engine.instance_id)
    assert isinstance(reply.context.slots, tuple) or not reply.success
    return reply.context.slots if isinstance(reply.context.slots, tuple) else None


def fill(engine: FakeEngine, slots: Sequence[SlotDescriptor], tokens: Sequence[int] = TOKENS) -> None:
    for chunk, slot in enumerate(slots):
        engine.write(slot, engine.content(tokens, chunk))


def commit_store(engine: FakeEngine, request: str, tokens: Sequence[int] = TOKENS) -> bool:
    return engine.worker.commit_store(engine.key(tokens, request, 0, END), engine.instance_id)


def commit_retrieve(engine: FakeEngine, request: str) -> None:
    engine.worker.commit_retrieve(engine.key(TOKENS, request, 0, END), engine.instance_id)


def right(engine: FakeEngine, tokens: Sequence[int] = TOKENS) -> list[bytes]:
    return [engine.content(tokens, chunk) for chunk in CHUNKS]


def test_two_requests_that_store_one_prompt_never_write_the_same_slots(server: Server, endpoint: str) -> None:
    with FakeEngine(endpoint) as engine, FakeEngine(endpoint) as other:
        first, second = prepare_store(engine, "a"), prepare_store(engine, "b")
        assert len(first) == len(CHUNKS)
        fill(engine, first)
        assert commit_store(engine, "a")
        engine.scheduler.clear(False)
        assert other.store(OTHERS)
        fill(engine, second)  # its thread has been slower
        assert other.retrieve(OTHERS) == right(other, OTHERS)
        if second:
            commit_store(engine, "b")
        assert other.retrieve(OTHERS) == right(other, OTHERS)
        quiet(server)


def test_a_request_that_prepares_a_range_twice_is_given_its_slots_once(server: Server, endpoint: str) -> None:
    with FakeEngine(endpoint) as engine:
        slots = prepare_store(engine, "r")
        assert len(slots) == len(CHUNKS)
        assert prepare_store(engine, "r") == ()
        assert server.status()["l1"]["held"] == len(CHUNKS)
        fill(engine, slots)
        assert commit_store(engine, "r")
        assert commit_store(engine, "r") is False
        assert engine.retrieve(TOKENS) == right(engine)
        quiet(server)


def test_a_commit_never_publishes_slots_of_a_later_prepare(start_server: StartServer) -> None:
    """The first thread's deadline passes, a second one prepares the same range of the same request; then the first one
    commits, while the second one writes."""
    server = start_server(l1_write_ttl_seconds=0.1)
    with FakeEngine(server.info.engine_endpoint) as engine, FakeEngine(server.info.engine_endpoint) as other:
        first = prepare_store(engine, "r")
        wait_for_quarantine(server, len(CHUNKS))
        second = prepare_store(engine, "r")
        for slot in second:
            engine.write(slot, b"\xee" * slot.length)  # half written
        fill(engine, first)
        assert commit_store(engine, "r") is False
        assert prepare_retrieve(other, "x") is None, "nothing was published"
        if second:
            commit_store(engine, "r")
        commit_retrieve(other, "x")
        assert engine.store(TOKENS)
        assert other.retrieve(TOKENS) == right(other)
        quiet(server)


def test_a_commit_ends_the_hold_of_its_own_request(server: Server, endpoint: str) -> None:
    with FakeEngine(endpoint) as engine, FakeEngine(endpoint) as other:
        engine.store(TOKENS)
        assert prepare_retrieve(engine, "a") is not None
        engine.scheduler.clear(True)
        engine.store(TOKENS)
        slots = prepare_retrieve(engine, "b")
        assert slots is not None
        commit_retrieve(engine, "a")
        engine.scheduler.clear(True)
        other.store(OTHERS)
        assert [engine.read(slot) for slot in slots] == right(engine)
        commit_retrieve(engine, "b")
        quiet(server)


def test_reads_of_one_name_end_together(server: Server, endpoint: str) -> None:
    """Which of the two has committed cannot be known."""
    with FakeEngine(endpoint) as engine, FakeEngine(endpoint) as other:
        engine.store(TOKENS)
        earlier = prepare_retrieve(engine, "r")
        engine.scheduler.clear(True)
        engine.store(TOKENS)
        later = prepare_retrieve(engine, "r")
        assert earlier is not None
        assert later is not None
        commit_retrieve(engine, "r")
        engine.scheduler.clear(True)
        other.store(OTHERS)
        assert [engine.read(slot) for slot in (*earlier, *later)] == right(engine) * 2
        commit_retrieve(engine, "r")
        quiet(server)


def test_the_commit_of_a_miss_ends_no_read(server: Server, endpoint: str) -> None:
    """Stock workers commit after a miss, too."""
    with FakeEngine(endpoint) as engine, FakeEngine(endpoint) as other:
        assert prepare_retrieve(engine, "r") is None
        engine.store(TOKENS)
        slots = prepare_retrieve(engine, "r")
        assert slots is not None
        commit_retrieve(engine, "r")  # of the miss
        engine.scheduler.clear(True)
        other.store(OTHERS)
        assert [engine.read(slot) for slot in slots] == right(engine)
        commit_retrieve(engine, "r")
        quiet(server)


def test_data_of_a_commit_goes_into_no_slot_that_a_thread_may_be_writing(server: Server, endpoint: str) -> None:
    """A stock worker whose second context could not map L1, while a thread of the first one still writes."""
    with FakeEngine(endpoint) as engine, FakeEngine(endpoint) as other:
        assert engine.store(OTHERS)
        slots = prepare_store(engine, "r")
        assert isinstance(engine.layout, ObjectLayout)
        data = stock_pickle(engine.layout, right(engine))
        engine.worker.commit_store(engine.key(TOKENS, "r", 0, END), engine.instance_id, data)
        for slot in slots:
            engine.write(slot, b"\xee" * slot.length)  # half written
        found = other.retrieve(TOKENS)
        assert found is None or found == right(other)
        fill(engine, slots)
        assert commit_store(engine, "r")
        assert other.retrieve(TOKENS) == right(other)
        quiet(server)


def wait_for_quarantine(server: Server, slots: int) -> None:
    import time

    deadline = time.monotonic() + 10
    while server.status()["l1"]["quarantined"] != slots:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_commit_that_outlives_its_registration_ends_no_later_read() -> None:
    """A stock worker was silent, is registered again under its instance id, and one of its threads, which missed before,
    commits only now."""
    reads = OpenReads()
    silent, again = cast(Worker, SimpleNamespace(instance_id=1)), cast(Worker, SimpleNamespace(instance_id=1))
    ticket = Ticket("r", "", 0, END, bytes(32))
    reads.ask(1, ticket)
    reads.forget(silent)
    reads.ask(1, ticket)
    hit = SlotReferences((7,), object())
    reads.add(again, ticket, hit)
    assert reads.commit(1, ticket) == (), "this may be the thread that missed"
    assert reads.commit(1, ticket) == [hit]
    assert not reads.has(1)


def test_what_ended_registrations_leave_is_bounded() -> None:
    reads = OpenReads()
    for instance in range(INSTANCES_MAX + 9):
        reads.ask(instance, Ticket("r", "", 0, END, bytes(32)))
        reads.forget(cast(Worker, SimpleNamespace(instance_id=instance)))
    assert sum(reads.has(instance) for instance in range(INSTANCES_MAX + 9)) == INSTANCES_MAX
    assert reads.has(INSTANCES_MAX + 8), "the latest are kept"
