"""Workers that lie are refused, and the ones beside them notice nothing."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demo.server_process import ServerProcess
from lmcache_transfer_torch.messages import RETRIEVE, STORE
from plugins.transfer_torch.tests.conftest import OPTIONS, endpoint_of
from plugins.transfer_torch.tests.driven_engine import BLOCKS, DrivenEngine, KernelGroup, Segment

TOKENS = list(range(100))
OTHER = list(range(200, 300))
NO = (b"", False)
INT64 = 2**63 - 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for all of these tests: whatever they send, it goes on.  Each has a tenant of its own."""
    with ServerProcess(OPTIONS, tmp_path_factory.mktemp("hostile") / "server.log") as server:
        yield server


@pytest.fixture
def salt() -> str:
    return secrets.token_hex(8)


@pytest.fixture
def healthy(server: ServerProcess, salt: str) -> Iterator[DrivenEngine]:
    """A worker beside, which finds its own at the end."""
    with DrivenEngine(endpoint_of(server), model="healthy", salt=salt) as engine:
        assert engine.store(TOKENS)
        yield engine
        assert engine.retrieve(TOKENS) == engine.right(TOKENS)
        assert engine.store(OTHER)
        assert engine.retrieve(OTHER) == engine.right(OTHER)
        for request in ("r", "next"):
            engine.fake.end(request)
        status = server.status()
        assert (status["l1"]["held"], status["l1"]["quarantined"]) == (0, 0)
        assert status["modules"]["lmcache_driven"]["transfers_in_flight"] == 0
        assert status["healthy"]
        engine.unregister()


@pytest.fixture
def liar(server: ServerProcess, salt: str, healthy: DrivenEngine) -> Iterator[DrivenEngine]:
    """A worker that is not registered yet."""
    engine = DrivenEngine(endpoint_of(server), salt=salt)
    yield engine
    engine.fake.end()
    engine.unregister()
    engine.close()


@pytest.fixture
def engine(liar: DrivenEngine) -> DrivenEngine:
    liar.register()
    return liar


Change = Callable[[list[int]], Any]
LIES: dict[str, Change] = {
    "too few": lambda ids: [ids[:-1]],
    "none": lambda ids: [[]],
    "no group": lambda ids: [],
    "a group too many": lambda ids: [ids, ids],
    "the first that is not there": lambda ids: [[*ids[:-1], BLOCKS]],
    "far away": lambda ids: [[*ids[:-1], INT64]],
    "beyond 64 bits": lambda ids: [[*ids[:-1], 2**64 - 1]],
    "negative": lambda ids: [[-1, *ids[1:]]],
    "very negative": lambda ids: [[-INT64, *ids[1:]]],
    "text": lambda ids: [["1", *ids[1:]]],
    "not nested": lambda ids: ids,
    "nothing": lambda ids: None,
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_block_ids_that_cannot_be(server: ServerProcess, engine: DrivenEngine, lie: Change) -> None:
    block_ids = lie(engine.blocks(6))
    assert engine.store_blocks(TOKENS, block_ids) == NO
    assert engine.lookup(TOKENS) == 0
    assert engine.store(TOKENS)
    before = engine.groups[0].read(range(BLOCKS))
    assert engine.retrieve_blocks(TOKENS, block_ids) == NO
    assert engine.groups[0].read(range(BLOCKS)) == before
    assert engine.retrieve(TOKENS) == engine.right(TOKENS)


def test_more_ids_than_are_needed_do_no_harm(engine: DrivenEngine) -> None:
    blocks = engine.blocks(6)
    engine.fill(TOKENS, blocks)
    many = blocks + [3] * 300_000
    assert engine.store_blocks(TOKENS, [many])[1]
    assert engine.retrieve_blocks(TOKENS, [many])[1]


@pytest.mark.parametrize("skip", [-1, 97, INT64])
def test_skips_that_cannot_be(engine: DrivenEngine, skip: int) -> None:
    assert engine.store(TOKENS)
    assert engine.retrieve_blocks(TOKENS, [engine.blocks(6)], skip=skip) == NO


@pytest.mark.parametrize(("start", "end"), [(1, 16), (0, 17), (0, 112), (16, 0), (-16, 16), (0, INT64), (INT64, INT64)])
def test_ranges_that_cannot_be(engine: DrivenEngine, start: int, end: int) -> None:
    assert engine.store(TOKENS)
    assert engine.retrieve_blocks(TOKENS, [engine.blocks(8)], start=start, end=end) == NO
    if end != 17:  # what is stored of a range is its whole chunks
        assert engine.store_blocks(OTHER, [engine.blocks(8)], start=start, end=end) == NO


def test_unknown_workers_and_those_who_move_their_own_bytes_are_refused(engine: DrivenEngine) -> None:
    blocks = [engine.blocks(6)]
    engine.instance_id += 1
    assert engine.store_blocks(TOKENS, blocks) == engine.retrieve_blocks(TOKENS, blocks) == NO
    engine.fake.instance_id = engine.instance_id
    assert engine.fake.register()  # engine-driven
    assert engine.fake.store(TOKENS)
    assert engine.store_blocks(TOKENS, blocks) == engine.retrieve_blocks(TOKENS, blocks) == NO


@pytest.mark.parametrize("size", [0, 1, 4096])
def test_a_segment_that_was_cut_is_not_touched(server: ServerProcess, engine: DrivenEngine, size: int) -> None:
    assert engine.store(TOKENS)
    os.truncate(engine.groups[0].segments[1].path, size)
    assert engine.retrieve_blocks(TOKENS, [engine.blocks(6)]) == NO
    assert engine.store_blocks(OTHER, [engine.blocks(6)]) == NO
    assert server.logs(f"was cut from {engine.groups[0].segments[1].size} to {size} bytes")


# Registrations


def refusals(server: ServerProcess) -> dict[str, int]:
    found: dict[str, int] = server.status()["modules"]["lmcache_driven"]["registrations_refused"]
    return found


def is_registered(server: ServerProcess, engine: DrivenEngine) -> bool:
    return engine.instance_id in [worker["instance_id"] for worker in server.status()["workers"]]


def refused_since(before: dict[str, int], server: ServerProcess) -> list[str]:
    """The reasons of those that were refused meanwhile."""
    return [reason for reason, count in refusals(server).items() if count > before.get(reason, 0)]


def changed(engine: DrivenEngine, **fields: Any) -> list[dict[str, Any]]:
    first, *rest = engine.descriptors()
    metadata = first["metadata"] | {name: value for name, value in fields.items() if name in first["metadata"]}
    others = {name: value for name, value in fields.items() if name not in first["metadata"]}
    return [first | {"metadata": metadata} | others, *rest]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"type": "npu"}, "'npu' cannot be imported"),
        ({"shm_name": "/etc/passwd"}, "not a name of a worker's segment"),
        ({"shm_name": "/lmcache_kv_0_0"}, "cannot be opened"),
        ({"nbytes": 2**40}, "the worker says"),
        ({"nbytes": 100}, "of a storage of 100 bytes"),
        ({"storage_offset": 2**40}, "of a storage of"),
        ({"shape": [BLOCKS, 2, 4, 33]}, "of a storage of"),
        ({"shape": [BLOCKS // 2, 2, 4, 32]}, "group 0 mixes layers"),
        ({"dtype": "quint8"}, "quint8"),
        ({"more": 1}, "more"),
        ({"version": 9}, "version"),
    ],
)  # fmt: skip
def test_registrations_that_cannot_be(
    server: ServerProcess, liar: DrivenEngine, fields: dict[str, Any], reason: str
) -> None:
    engine, before = liar, refusals(server)
    engine.register(changed(engine, **fields))
    (refusal,) = refused_since(before, server)
    assert reason in refusal
    assert engine.store_blocks(TOKENS, [engine.blocks(6)]) == NO
    assert engine.lookup(TOKENS) == 0
    assert engine.fake.worker.ping(engine.instance_id)  # it has its answer, and is left in peace
    engine.register()
    assert engine.store(TOKENS)


def test_l1_itself_cannot_be_registered(server: ServerProcess, liar: DrivenEngine) -> None:
    before, name = refusals(server), server.status()["l1"]["segment"]
    liar.register(changed(liar, shm_name=f"/{name}"))
    (refusal,) = refused_since(before, server)
    assert name in refusal


@pytest.mark.parametrize(
    "changes",
    [
        {"world_size": 0}, {"world_size": 300}, {"model": "m" * 5000}, {"engine": "abacus"}, {"instance_id": -1},
        {"instance_id": 2**64 - 1}, {"hints": {"kv_layout": "XYZ"}}, {"hints": {"num_kv_heads": -1}}, {"tensors": []},
        {"tensors": [msgspec.msgpack.Ext(2, b"")]}, {"tensors": [msgspec.msgpack.Ext(1, b"\xc1")]},
        {"groups": [{"engine_group_id": 0, "layer_indices": [7]}]},
        {"groups": [{"engine_group_id": 0, "layer_indices": [-1]}]},
        {"groups": [{"engine_group_id": 0, "tokens_per_block": 5}]},
        {"groups": [{"engine_group_id": 0}] * 100},
    ],
)  # fmt: skip
def test_what_else_a_registration_may_not_say(
    server: ServerProcess, liar: DrivenEngine, changes: dict[str, Any]
) -> None:
    before = refusals(server)
    liar.register(**changes)
    assert len(refused_since(before, server)) == 1
    assert not is_registered(server, liar)
    mapped = Path(f"/proc/{server.pid}/maps").read_text()
    assert all(segment.name not in mapped for segment in liar.groups[0].segments)


@pytest.mark.parametrize(
    "changes", [{"tensors": "x"}, {"tensors": [1]}, {"groups": {}}, {"hints": []}, {"model": 5}, {"world_size": None}]
)
def test_registrations_that_are_not_the_protocols_are_answered(
    server: ServerProcess, liar: DrivenEngine, changes: dict[str, Any]
) -> None:
    liar.register(**changes)
    assert not is_registered(server, liar)


def test_a_model_with_chunks_too_large_for_l1_is_refused(server: ServerProcess, liar: DrivenEngine) -> None:
    before = refusals(server)
    segment = Segment(2**24)
    shape, stride = [4, 2, 16, 2**15], [2**20, 2**19, 2**15, 1]
    metadata = {"dtype": "uint8", "shape": shape, "stride": stride, "storage_offset": 0, "device_uuid": "cpu"}
    descriptor = {"type": "cpu_shm", "shm_name": segment.name, "nbytes": 2**24, "version": 1, "metadata": metadata}
    liar.register([descriptor] * 8)
    (reason,) = refused_since(before, server)
    assert "too large for an L1" in reason
    segment.close()


def test_latent_attention_in_host_memory_is_refused(server: ServerProcess, liar: DrivenEngine) -> None:
    """Its hits were wrong in a real engine, so it runs uncached rather than on them.  Nothing is ever written where it says
    that its pages are."""
    before = refusals(server)
    segment = Segment(2**16)
    metadata = {
        "dtype": "uint8", "shape": [4, 16, 64], "stride": [1024, 64, 1], "storage_offset": 0, "device_uuid": "cpu",
    }  # fmt: skip
    descriptor = {"type": "cpu_shm", "shm_name": segment.name, "nbytes": 2**16, "version": 1, "metadata": metadata}
    liar.register([descriptor] * 8)
    assert not is_registered(server, liar)
    assert liar.lookup(TOKENS) == 0
    assert liar.store_blocks(TOKENS, [[0] * 24])[1] is False  # null blocks say nothing
    assert refused_since(before, server) == []
    for _ in range(2):
        assert liar.store_blocks(TOKENS, [[1, 2, 3, 1, 2, 3]])[1] is False
    assert not is_registered(server, liar)
    (reason,) = refused_since(before, server)
    assert "latent attention" in reason
    assert "engine_driven" in reason
    segment.close()


# Whatever comes


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(data=st.data())
def test_whatever_is_asked_is_answered(server: ServerProcess, healthy: DrivenEngine, data: st.DataObject) -> None:
    numbers = st.integers(-2, 70) | st.sampled_from([-INT64, INT64, 2**32])
    lists = st.lists(st.lists(numbers, max_size=30), max_size=3)
    operation = data.draw(st.sampled_from([STORE, RETRIEVE]))
    start, end = data.draw(numbers), data.draw(numbers)
    key = healthy.fake.key(TOKENS, data.draw(st.text(max_size=3)), start, end)
    rest: list[Any] = [data.draw(lists), data.draw(st.binary(max_size=80))]
    if operation is RETRIEVE:
        rest.append(data.draw(numbers))
    event, moved = healthy.fake.worker.call(operation, key, healthy.instance_id, *rest)
    assert isinstance(event, bytes)
    assert moved in (True, False)


# Death

DYING = """
    import sys, threading
    from plugins.transfer_torch.tests.driven_engine import DrivenEngine, KernelGroup
    engine = DrivenEngine(sys.argv[1], [KernelGroup(8)], model="dying", layers=8, salt=sys.argv[2])
    engine.register()
    print("\\n".join(segment.name for segment in engine.groups[0].segments), flush=True)
    number = 0
    while True:
        tokens = list(range(number, number + 240))
        if engine.store(tokens):
            assert engine.retrieve(tokens) == engine.right(tokens)
            print("copied", flush=True)
        number += 240
"""


@pytest.mark.parametrize("pause", [0.0, 0.003, 0.011])
def test_workers_that_die_in_the_middle_of_a_copy(
    server: ServerProcess, engine: DrivenEngine, salt: str, pause: float
) -> None:
    command = [sys.executable, "-c", textwrap.dedent(DYING), endpoint_of(server), salt]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    names = []
    while (line := child.stdout.readline().strip()) != "copied":
        assert line, "the child ended by itself"
        names.append(line)
    time.sleep(pause)
    child.send_signal(signal.SIGKILL)
    child.wait(10)
    child.stdout.close()
    for name in names:
        Path("/dev/shm", name).unlink()
    assert engine.store(TOKENS)
    assert engine.retrieve(TOKENS) == engine.right(TOKENS)
    # The dead one is still registered.  What it stored is whole, for the next worker.
    found = 0
    with DrivenEngine(endpoint_of(server), [KernelGroup(8)], model="dying", layers=8, salt=salt) as follower:
        for number in range(0, 2400, 240):
            tokens = list(range(number, number + 240))[
                : 16 * follower.lookup(list(range(number, number + 240)), "next")
            ]
            if tokens:
                assert follower.retrieve(tokens, "next") == follower.right(tokens)
                found += 1
        follower.fake.end("next")
        follower.unregister()
    assert found
