"""Clients that send anything, overlap and die: nothing wrong is written, and nothing stays held."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from demo.server_process import HOST, ServerProcess
from lmcache_blend.messages import HANDSHAKE, REGISTER_ROPE, REORDER_PLAN, RETRIEVE, UNIFIED_LOOKUP, UNREGISTER_ROPE
from lmcache_blend.module import BlendModule
from lmcache_client import BLEND_COMMIT, BLEND_LOOKUP, BLEND_PREPARE, Operation
from lmcache_client.client import EngineClient
from lmcache_core.app.server import Server
from lmcache_transfer_torch.messages import UNREGISTER
from plugins.blend.tests.conftest import started
from plugins.blend.tests.test_server_driven import (
    EVENT,
    GARBAGE,
    HEAD,
    NO,
    SHUFFLED,
    SLOTS,
    Layers,
    RawClient,
    Rope,
    check,
    moved,
)
from plugins.transfer_torch.tests.driven_engine import NUMBER, answers_to_wrong_frames

SECONDS = 20.0
ROUNDS = 30
OPERATIONS = (
    *(HANDSHAKE, REGISTER_ROPE, UNREGISTER_ROPE, UNIFIED_LOOKUP, RETRIEVE, REORDER_PLAN),
    *(BLEND_LOOKUP, BLEND_PREPARE, BLEND_COMMIT),
)
TAKES_ANY_NUMBER = (UNIFIED_LOOKUP, BLEND_LOOKUP, BLEND_COMMIT)
"""For a relic, for seconds, and for an instance that has nothing prepared."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = started()
    yield server
    server.stop(0.0)


@pytest.fixture
def client(server: Server) -> Iterator[RawClient]:
    with RawClient(server.info.engine_endpoint) as client:
        client.share_rope()
        yield client
        for request in ("r", "store"):
            client.fake.end(request)
        until(lambda: leases(server) == 0)
        client.fake.scheduler.clear()


def until(good: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not good():
        assert time.monotonic() < end
        time.sleep(0.01)


def leases(server: Server) -> object:
    return server.status()["l1"]["leases"]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_payloads_that_cannot_be_read_are_answered_and_change_nothing(
    server: Server, client: RawClient, operation: Operation
) -> None:
    prompt, matches = moved(client)
    key = client.fake.key(prompt, "other", 0, len(prompt))
    instance = client.instance_id
    payload: dict[str, tuple[Any, ...]] = {
        HANDSHAKE.name: (1,),
        REGISTER_ROPE.name: (instance, [client.table(Rope().table())], HEAD, True, [0], [], [HEAD], ""),
        UNREGISTER_ROPE.name: (instance + 1,),
        UNIFIED_LOOKUP.name: (key, 1),
        RETRIEVE.name: (key, matches, [SHUFFLED], instance, EVENT),
        REORDER_PLAN.name: (key, 0, 10),
        BLEND_LOOKUP.name: (key, 0.0),
        BLEND_PREPARE.name: (key, (), instance),
        BLEND_COMMIT.name: ("other", instance),
    }
    negative = [msgspec.msgpack.encode(operation.negative)]
    for frame, result in answers_to_wrong_frames(server.info.engine_endpoint, operation, payload[operation.name]):
        assert result in ([], negative) or (frame == NUMBER and operation in TAKES_ANY_NUMBER), frame
    assert client.untouched()
    assert client.retrieve(prompt, matches, SHUFFLED) == (EVENT, True)
    check(client, prompt, matches, SHUFFLED)


def test_the_pages_of_another_engine_are_its_own(server: Server, client: RawClient) -> None:
    prompt, matches = moved(client)
    key = client.fake.key(prompt, "r", 0, len(prompt))
    for options in ({"model": "other"}, {"world_size": 2}):
        with RawClient(server.info.engine_endpoint, **options) as other:
            other.share_rope()
            other.groups[0].wipe()
            assert client.ask(RETRIEVE, key, matches, [SHUFFLED], other.instance_id, EVENT) == NO
            assert other.untouched()
            assert client.untouched()


def test_two_retrieves_of_one_lookup_at_the_same_time(server: Server, client: RawClient) -> None:
    prompt, matches = moved(client)
    count = -(-len(prompt) // SLOTS)
    tables = [SHUFFLED[:count], SHUFFLED[count : 2 * count]]
    key = client.fake.key(prompt, "r", 0, len(prompt))
    worker = client.fake.worker
    sent = [worker.send(RETRIEVE, key, matches, [blocks], client.instance_id, EVENT) for blocks in tables]
    assert [worker.receive(each) for each in sent] == [(EVENT, True)] * 2
    for layer, pages in enumerate(client.groups[0].pages):
        one, two = (pages[blocks].copy() for blocks in tables)
        assert (one == two).all(), f"layer {layer}"
        pages[tables[1]] = GARBAGE
    check(client, prompt, matches, tables[0])


def test_pages_that_leave_during_reads_are_touched_no_more(server: Server, client: RawClient) -> None:
    prompt, matches = moved(client)
    key = client.fake.key(prompt, "r", 0, len(prompt))
    worker, answers = client.fake.worker, []
    for _ in range(ROUNDS):
        sent = [worker.send(RETRIEVE, key, matches, [SHUFFLED], client.instance_id, EVENT) for _ in range(4)]
        client.ask(UNREGISTER, client.instance_id)
        client.groups[0].wipe()
        time.sleep(0.005)
        assert client.untouched(), "pages were written after their worker had left"
        answers += [worker.receive(each) for each in sent]
        client.__enter__()
        client.share_rope()
    assert (EVENT, True) in answers
    assert set(answers) <= {NO, (EVENT, True)}


@pytest.mark.parametrize("of_another", ["id", "rope"])
def test_two_processes_with_one_id_do_not_mix_their_pages(
    server: Server, module: BlendModule, client: RawClient, of_another: str
) -> None:
    """As with clients whose id is that of their process, in two containers: nothing that the second says touches the pages
    of the first, or how they are turned."""
    prompt, matches = moved(client)
    with RawClient(server.info.engine_endpoint, Layers(Rope(base=77.0), 2)) as other:
        other.instance_id = client.instance_id
        if of_another == "id":
            assert other.retrieve(prompt, matches, SHUFFLED) == NO
            other.ask(UNREGISTER_ROPE, other.instance_id)
        else:
            other.share_rope()
        assert client.untouched()
        assert client.retrieve(prompt, matches, SHUFFLED) == (EVENT, True)
        check(client, prompt, matches, SHUFFLED)
    reason = f"instance {client.instance_id} is another process"
    assert any(reason in each for each in module.status()["refused"])  # type: ignore[attr-defined]


def test_a_process_does_not_inherit_the_pages_of_a_dead_one_with_its_id(server: Server, client: RawClient) -> None:
    prompt, matches = moved(client)
    dead = client.fake.worker
    client.fake.worker = EngineClient(server.info.engine_endpoint, SECONDS)
    dead.close()
    find = server.parts.engine_port.workers.find
    until(lambda: client.retrieve(prompt, matches, SHUFFLED) == NO and find(client.instance_id) is None)
    assert client.untouched()
    client.__enter__()
    client.share_rope()
    assert client.retrieve(prompt, matches, SHUFFLED) == (EVENT, True)
    check(client, prompt, matches, SHUFFLED)


def test_memory_that_is_cut_during_reads_kills_no_server(tmp_path: Path) -> None:
    """A process of its own, because a copy into memory that is not there would end it."""
    options = ["--chunk-size", "16", "--l1-size-gb", "0.05", "--engine-type", "blend"]
    with ServerProcess(options, tmp_path / "server.log") as server:
        for number in range(ROUNDS // 3):
            with RawClient(f"tcp://{HOST}:{server.port}") as client:
                client.share_rope()
                prompt, matches = moved(client)
                cut = threading.Timer(0.002 * number, os.truncate, (client.groups[0].segments[1].path, 100))
                cut.start()
                while client.retrieve(prompt, matches, SHUFFLED) == (EVENT, True):
                    pass
                cut.join()
                for request in ("r", "store"):
                    client.fake.end(request)
        status = server.status()
        assert status["l1"]["leases"] == 0
        assert status["l1"]["state_counts_add_up"]


KILLED = """
import sys
from lmcache_client import BLEND_LOOKUP, BLEND_PREPARE
from lmcache_devkit.fake_engine import FakeEngine

document = list(range(5000, 5000 + 48))
engine = FakeEngine(sys.argv[1])
engine.register()
engine.store(document)
engine.end()
prompt = [1, *document]
for number in range(1_000_000):
    name = f"killed{number}"
    key = engine.key(prompt, name, 0, len(prompt), of_worker=False)
    answer = engine.scheduler.call(BLEND_LOOKUP, key, 5.0)
    engine.worker.call(BLEND_PREPARE, engine.key(prompt, name, 0, len(prompt)), answer.segments, engine.instance_id)
    if number == 3:
        print(len(answer.segments), engine.instance_id, flush=True)
"""


def test_an_engine_that_is_killed_while_it_reads_holds_nothing() -> None:
    server = started(worker_reap_timeout_seconds=1.0, worker_registration_grace_seconds=1.0, l1_read_ttl_seconds=2.0)
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, server.info.engine_endpoint], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        segments, _ = child.stdout.readline().split()
        assert segments == "3"
        assert leases(server) != 0
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        until(lambda: leases(server) == 0)
        assert server.status()["modules"]["blend"]["reads_prepared"] == 0
    finally:
        server.stop(0.0)
