"""Whatever comes in on the engine port, the server goes on serving well-behaved clients."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from core.tests.server.conftest import StartServer
from lmcache_client.client import EngineClient
from lmcache_client.operations import KNOWN_REQUESTS, OPERATIONS
from lmcache_core.app.server import Server
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine

TOKENS = list(range(320))
MIB = 1 << 20

frames = st.lists(st.binary(max_size=64), min_size=0, max_size=20)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


class Peer:
    """A DEALER that sends anything."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(endpoint)

    def ask(self, *parts: bytes, seconds: float = 5.0) -> list[bytes]:
        self.socket.send_multipart(parts)
        assert self.socket.poll(int(seconds * 1000)), "no answer"
        return self.socket.recv_multipart()

    def close(self) -> None:
        self.socket.close()
        self._context.term()


@pytest.fixture
def peer(endpoint: str) -> Iterator[Peer]:
    peer = Peer(endpoint)
    yield peer
    peer.close()


@pytest.fixture
def healthy(endpoint: str) -> Iterator[FakeEngine]:
    with FakeEngine(endpoint) as engine:
        engine.store(TOKENS)
        yield engine


def still_serves(engine: FakeEngine) -> None:
    assert engine.lookup(TOKENS) == 20
    assert engine.retrieve(TOKENS) == [engine.content(TOKENS, chunk) for chunk in range(20)]
    engine.end()


HYPOTHESIS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@HYPOTHESIS
@given(parts=frames)
def test_random_frames(peer: Peer, healthy: FakeEngine, parts: list[bytes]) -> None:
    peer.socket.send_multipart(parts or [b""])
    assert healthy.worker.ping(healthy.instance_id)


@HYPOTHESIS
@given(
    request=st.sampled_from(KNOWN_REQUESTS),
    by_name=st.booleans(),
    payload=st.lists(values | st.binary(max_size=32), max_size=6),
)
def test_every_readable_envelope_is_answered(
    peer: Peer, healthy: FakeEngine, request: object, by_name: bool, payload: list[object]
) -> None:
    """Wrong arity, wrong types, operations without a handler: an answer comes, and it is the request's."""
    code = request.wire_id if request.wire_id and not by_name else request.name  # type: ignore[attr-defined]
    if request.name == "wait_prefetch_status":  # type: ignore[attr-defined]
        payload = payload[:1]  # with a proper time-out it would rightly wait
    try:
        encoded = [part if isinstance(part, bytes) else msgspec.msgpack.encode(part) for part in payload]
    except OverflowError:
        return
    uid, operation = b"any bytes", msgspec.msgpack.encode(code)
    answer = peer.ask(uid, operation, *encoded)
    assert answer[:2] == [uid, operation]


@pytest.mark.parametrize("code", [0, -5, 34, 10**9, "no_such_operation", "x" * 10_000, None, 1.5, [1], {"a": 1}])
def test_unknown_operations_are_answered_without_a_result(peer: Peer, code: object) -> None:
    operation = msgspec.msgpack.encode(code)
    assert peer.ask(b"\x01", operation, b"\xc0") == [b"\x01", operation]


def test_giant_counts_are_refused_at_once(peer: Peer, healthy: FakeEngine) -> None:
    """Headers that promise 4 billion elements: nothing is allocated for them."""
    for giant in (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"):
        for operation in OPERATIONS:
            code = msgspec.msgpack.encode(operation.wire_id)
            answer = peer.ask(b"\x01", code, *([giant] * max(1, len(operation.payload))))
            assert answer[:2] == [b"\x01", code]
    key = healthy.key(TOKENS, "r", 0, 320)
    lying = msgspec.structs.replace(key, token_ids=msgspec.Raw(b"\xdd\xff\xff\xff\xff\x01\x02"))
    with pytest.raises(ValueError, match="truncated"):
        msgspec.msgpack.decode(msgspec.msgpack.encode(lying))
    peer.ask(b"\x01", b"\x08", msgspec.msgpack.encode(lying), b"\x01")
    still_serves(healthy)


def test_ranges_that_make_no_sense_are_refused(healthy: FakeEngine) -> None:
    for start, end in ((5, 32), (32, 16), (0, 10**9), (-16, 16), (0, 2**62), (2**62, 2**63 - 1)):
        key = healthy.key(TOKENS, "r", start, end)
        assert healthy.worker.prepare_store(key, healthy.instance_id).context.slots == ()
        assert healthy.worker.prepare_retrieve(key, healthy.instance_id).success is False
        healthy.scheduler.lookup(key)
        healthy.scheduler.free_lookup_locks(key)
        healthy.end()
    still_serves(healthy)


def test_names_that_no_object_has_room_for_are_refused_and_kept_nowhere(server: Server, healthy: FakeEngine) -> None:
    for key in (
        replace(healthy.key(TOKENS, "r", 0, 320, of_worker=False), model_name="m" * 4096),
        replace(healthy.key(TOKENS, "r", 0, 320, of_worker=False), model_name="unknown", cache_salt="s" * 4096),
        healthy.key(TOKENS, "r" * 4096, 0, 320, of_worker=False),
    ):
        healthy.scheduler.lookup(key)
        assert healthy.scheduler.query_prefetch_status(key.request_id) == 0
    healthy.scheduler.end_session("r" * 4096)
    assert healthy.store(TOKENS, "r" * 4096), "the answer is that there is nothing to store"
    counts = server.counts()
    assert not [tenant for tenant in counts.tenants if any(len(name) >= 2048 for name in tenant)]
    for operation, refused in (("lookup", 3), ("end_session", 1), ("prepare_store", 1)):
        assert sum(counts.port.times[operation, "refused"].counts) == refused
    still_serves(healthy)


def test_pickles_are_read_and_never_executed(healthy: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> None:
    canary = tmp_path_factory.mktemp("canary") / "executed"
    attacks = [
        f"cos\nsystem\n(S'touch {canary}'\ntR.".encode(),
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c"
        + bytes([len(f"touch {canary}")])
        + f"touch {canary}".encode()
        + b"\x85R.",
        b"\x80\x04](" + b"cbuiltins\nexec\n(S'x'\ntR" + b"e.",
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x80\x04" + b"(" * 100_000 + b".",
    ]
    key = healthy.key([1, *TOKENS], "r", 0, 32)
    for attack in attacks:
        assert healthy.worker.commit_store(key, healthy.instance_id, attack) is False
    assert not canary.exists()
    still_serves(healthy)


def test_frames_above_the_limit_cost_only_their_sender(start_server: StartServer) -> None:
    server = start_server(max_message_mb=1)
    with FakeEngine(server.info.engine_endpoint) as healthy:
        healthy.store(TOKENS)
        giant = Peer(server.info.engine_endpoint)
        giant.socket.send_multipart([b"\x01", b"\x18", bytes(2 * MIB)])
        assert not giant.socket.poll(300)
        giant.close()
        still_serves(healthy)


def test_a_peer_that_asks_a_lot_and_goes_keeps_no_one_waiting(
    server: Server, endpoint: str, healthy: FakeEngine
) -> None:
    deaf = Peer(endpoint)
    for _ in range(20_000):
        try:
            deaf.socket.send_multipart([b"\x01", b"\x18"], zmq.NOBLOCK)
        except zmq.Again:
            break
    still_serves(healthy)
    deaf.close()
    with EngineClient(endpoint) as client:
        assert client.noop() == "OK"


def test_the_server_does_not_grow(tmp_path: Path) -> None:
    """Thousands of bad requests from hundreds of connections, and the memory of its process is what it was."""
    port = free_port()
    options = f"--host 127.0.0.1 --port {port} --no-http --l1-size-gb 0.0625 --chunk-size 16".split()
    with (tmp_path / "log").open("wb") as log:
        child = subprocess.Popen([sys.executable, "-m", "lmcache_core", "server", *options], stdout=log, stderr=log)
    try:
        endpoint = f"tcp://127.0.0.1:{port}"
        with EngineClient(endpoint, timeout_seconds=30) as client:
            client.noop()
        attack(endpoint, 40)
        before = psutil.Process(child.pid).memory_info().rss
        attack(endpoint, 120)
        assert psutil.Process(child.pid).memory_info().rss - before < 8 * MIB
        with FakeEngine(endpoint) as engine:
            engine.store(TOKENS)
            still_serves(engine)
    finally:
        child.terminate()
        assert child.wait(30) == 0
    assert (tmp_path / "log").stat().st_size < 100_000, "bad requests flood the log"


def attack(endpoint: str, connections: int) -> None:
    rng = random.Random(7)
    for _ in range(connections):
        peer = Peer(endpoint)
        for _ in range(50):
            uid = struct.pack("<I", rng.randrange(2**32))
            code = msgspec.msgpack.encode(rng.choice(KNOWN_REQUESTS).name)
            junk = [rng.randbytes(rng.randrange(200)) for _ in range(rng.randrange(5))]
            peer.socket.send_multipart([uid, code, *junk])
        peer.ask(b"last", b"\x18")
        peer.close()
