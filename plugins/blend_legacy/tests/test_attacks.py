"""Clients that send anything, overlap and die: nothing wrong is written, and nothing stays held."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from demo.server_process import HOST, ServerProcess
from lmcache_blend_legacy.messages import (
    LOOKUP,
    LOOKUP_V2,
    REGISTER,
    RETRIEVE,
    RETRIEVE_V2,
    STORE_FINAL,
    STORE_PRE_COMPUTED,
    UNREGISTER,
)
from lmcache_client import Operation
from lmcache_client.client import EngineClient
from lmcache_core.app.server import Server
from plugins.blend_legacy.tests.conftest import EVENT, FIRST, GARBAGE, NO, SECOND, SIZE, Client, held, prompt, status
from plugins.transfer_torch.tests.driven_engine import answers_to_wrong_frames

SECONDS = 20.0
ROUNDS = 30


def until(good: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not good():
        assert time.monotonic() < end
        time.sleep(0.01)


OPERATIONS = (REGISTER, UNREGISTER, STORE_PRE_COMPUTED, STORE_FINAL, LOOKUP, LOOKUP_V2, RETRIEVE, RETRIEVE_V2)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_payloads_that_cannot_be_read_are_answered_and_change_nothing(
    server: Server, client: Client, operation: Operation
) -> None:
    client.store(SECOND)
    payload: dict[str, tuple[Any, ...]] = {
        REGISTER.name: (client.instance_id, client.tensors(), "model", 1),
        UNREGISTER.name: (client.instance_id + 1,),
        LOOKUP.name: (client.key(SECOND),),
        LOOKUP_V2.name: (client.key(SECOND),),
        RETRIEVE.name: (client.key(SECOND), [(0, SIZE)], 0, client.instance_id, EVENT),
        RETRIEVE_V2.name: (client.key(SECOND), [], 0, client.instance_id, EVENT),
    }
    sent = payload.get(operation.name, (client.key(SECOND), 0, client.instance_id, EVENT))
    for frame, result in answers_to_wrong_frames(server.info.engine_endpoint, operation, sent):
        assert result in ([], [msgspec.msgpack.encode(operation.negative)]), frame
    client.check({})
    assert client.retrieve(SECOND, [(0, SIZE)]) == (EVENT, True)
    client.check({0: SECOND})


def test_the_buffer_of_another_engine_is_its_own(server: Server, client: Client) -> None:
    """An id that belongs to a worker of another model or shard moves nothing, in neither buffer."""
    client.store(SECOND)
    for options in ({"model": "other"}, {"world_size": 2}):
        with Client(server, **options) as other:
            for operation in (STORE_PRE_COMPUTED, STORE_FINAL):
                assert client.ask(operation, client.key(SECOND), 0, other.instance_id, EVENT) == NO
            assert client.ask(RETRIEVE, client.key(SECOND), [(0, SIZE)], 0, other.instance_id, EVENT) == NO
            other.check({})
            client.check({})


def test_two_retrieves_of_one_lookup_at_the_same_time(server: Server, client: Client) -> None:
    client.store(FIRST, SECOND)
    tokens = prompt(SECOND, FIRST)
    found = client.lookup(tokens)
    worker, shift = client.fake.worker, SIZE + len(FIRST) + 2
    asked = [(client.key(tokens), found, offset, client.instance_id, EVENT) for offset in (0, shift)]
    sent = [worker.send(RETRIEVE, *each) for each in asked]
    assert [worker.receive(each) for each in sent] == [(EVENT, True)] * 2
    client.check({0: SECOND, 18: FIRST, shift: SECOND, shift + 18: FIRST})
    client.fake.end()
    assert held(server) == 0


def test_a_buffer_that_leaves_during_reads_and_stores_is_touched_no_more(server: Server, client: Client) -> None:
    client.store(FIRST, SECOND)
    tokens, worker, answers = prompt(FIRST, SECOND), client.fake.worker, []
    found = client.lookup(tokens)
    stored = client.key(list(range(7000, 7100))), 0, client.instance_id, EVENT
    for _ in range(ROUNDS):
        sent = [worker.send(RETRIEVE, client.key(tokens), found, *stored[1:]) for _ in range(4)]
        stores = worker.send(STORE_PRE_COMPUTED, *stored)
        client.ask(UNREGISTER, client.instance_id)
        client.wipe()
        time.sleep(0.002)
        assert all((rows == GARBAGE).all() for rows in client.rows), "rows were written after the buffer had left"
        answers += [worker.receive(each) for each in sent]
        worker.receive(stores)
        client.register()
    assert (EVENT, True) in answers
    assert set(answers) <= {NO, (EVENT, True)}
    client.fake.end()
    until(lambda: held(server) == 0)


def test_two_processes_with_one_id_do_not_mix_their_rows(server: Server, client: Client) -> None:
    """As with clients whose id is that of their process, in two containers: the second one is refused while the first is
    connected, and nothing that it says touches the rows of the first."""
    client.store(FIRST)
    other = Client(server)
    other.instance_id = client.instance_id
    try:
        other.register()
        assert other.ask(STORE_PRE_COMPUTED, other.key(SECOND), 0, other.instance_id, EVENT) == NO
        assert other.ask(STORE_FINAL, other.key(SECOND), 0, other.instance_id, EVENT) == NO
        assert other.retrieve(FIRST, [(0, len(FIRST))]) == NO
        assert other.retrieve(FIRST, other.lookup(FIRST, LOOKUP_V2), 0, RETRIEVE_V2) == NO
        client.check({})
        client.store(SECOND)
        other.ask(UNREGISTER, other.instance_id)
        assert client.retrieve(SECOND, [(0, SIZE)]) == (EVENT, True)
        client.check({0: SECOND})
        other.check({})
    finally:
        other.close()
    assert any(f"instance {client.instance_id} is another process" in each for each in status(server)["refused"])


def test_a_process_does_not_inherit_the_rows_of_a_dead_one_with_its_id(server: Server, client: Client) -> None:
    client.store(FIRST)
    client.fake.worker.close()
    client.fake.worker = EngineClient(server.info.engine_endpoint, SECONDS)
    asked = client.key(SECOND), 0, client.instance_id, EVENT
    find = server.parts.engine_port.workers.find
    until(lambda: client.ask(STORE_PRE_COMPUTED, *asked) == NO and find(~client.instance_id) is None)
    client.register()
    client.store(SECOND)
    assert client.retrieve(SECOND, [(0, SIZE)]) == (EVENT, True)
    client.check({0: SECOND})


KILLED = """
import sys
from types import SimpleNamespace
from plugins.blend_legacy.tests import conftest as clients

clients.ROWS = 20_000
client = clients.Client(SimpleNamespace(info=SimpleNamespace(engine_endpoint=sys.argv[1])), (2, 20_000, 2, 8))
client.register()
print(client.instance_id, *[each.name for each in client.segments], flush=True)
for number in range(1_000_000):
    tokens = list(range(number, number + 19_990))
    client.ask(clients.STORE_PRE_COMPUTED, client.key(tokens), 0, client.instance_id, clients.EVENT)
"""


def test_an_engine_that_is_killed_during_a_store_holds_nothing(server: Server, client: Client) -> None:
    for milliseconds in (0, 3, 17, 60):
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, server.info.engine_endpoint], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        instance, *names = child.stdout.readline().split()
        time.sleep(milliseconds / 1000)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        until(lambda: held(server) == 0)
        client.ask(UNREGISTER, int(instance))
        for name in names:
            (Path("/dev/shm") / name).unlink()
            assert name not in Path("/proc/self/maps").read_text(), "the server keeps its memory"
    assert server.status()["l1"]["state_counts_add_up"]
    client.store(SECOND)
    assert client.retrieve(SECOND, [(0, SIZE)]) == (EVENT, True)
    client.check({0: SECOND})


def test_memory_that_is_cut_during_copies_kills_no_server(tmp_path: Path) -> None:
    """A process of its own, because a copy out of memory that is not there would end it."""
    options = ["--chunk-size", str(SIZE), "--l1-size-gb", "0.05", "--engine-type", "blend_legacy"]
    with ServerProcess(options, tmp_path / "server.log") as server:
        about = SimpleNamespace(info=SimpleNamespace(engine_endpoint=f"tcp://{HOST}:{server.port}"))
        for number in range(ROUNDS // 3):
            client = Client(cast(Server, about))
            client.register()
            assert client.ask(STORE_PRE_COMPUTED, client.key(FIRST), 0, client.instance_id, EVENT)[1]
            cut = threading.Timer(0.002 * number, os.truncate, (client.segments[1].path, 100))
            cut.start()
            answer = (EVENT, True)
            while answer == (EVENT, True):
                other = list(range(10_000 * number, 10_000 * number + 100))
                answer = client.ask(RETRIEVE, client.key(FIRST), [(0, len(FIRST))], 0, client.instance_id, EVENT)
                client.ask(STORE_PRE_COMPUTED, client.key(other), 0, client.instance_id, EVENT)
            cut.join()
            assert answer == NO
            client.rows = []  # this process must not touch it, either
            client.close()
        status = server.status()
        assert status["l1"]["held"] == 0
        assert status["l1"]["state_counts_add_up"]


def test_a_prompt_of_a_million_tokens_is_answered(client: Client) -> None:
    client.store(SECOND)
    tokens = [*SECOND, 7, 8, *np.random.default_rng(3).integers(9, 100_000, 1_000_000).tolist()]
    started = time.monotonic()
    assert client.lookup(tokens) == [(0, SIZE)]
    assert client.retrieve(tokens, [(0, SIZE)]) == (EVENT, True)
    assert client.ask(STORE_PRE_COMPUTED, client.key(tokens), 0, client.instance_id, EVENT) == NO, "no such rows"
    assert time.monotonic() - started < SECONDS
    client.check({0: SECOND})
