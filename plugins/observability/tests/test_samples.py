"""What a running server measures of itself: every kind is described, and what must add up does, whenever it is read."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

import pytest

from core.tests.injected import FAULT_INJECT, injected
from lmcache_core.app.build import build
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.server import Server
from lmcache_core.app.settings import ServerSettings
from lmcache_core.contracts.samples import Sample, SampleKind
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine
from lmcache_observability.samples.catalogue import SAMPLE_KINDS, sample_kinds, samples

CHUNKS = 16
TOKENS = 16 * CHUNKS
Values = Mapping[tuple[str, ...], float]


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(**settings: object) -> Server:
        given = {"host": "127.0.0.1", "port": free_port(), "chunk_size": 16, **settings}
        servers.append(build(ServerSettings(**given), load_plugins(["devkit", "policies"])))  # type: ignore[arg-type]
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.stop(0.0)


def values(server: Server) -> defaultdict[str, dict[tuple[str, ...], float]]:
    """By name and labels; a value that comes twice is an error."""
    found: defaultdict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
    for name, value, labels, _ in samples(server):
        assert labels not in found[name], (name, labels)
        found[name][labels] = value
    return found


def prompt(number: int) -> list[int]:
    return [number, *range(TOKENS - 1)]


def test_names_are_different_and_well_formed() -> None:
    names = [kind.name for kind in SAMPLE_KINDS]
    assert len(set(names)) == len(names)
    exposed = [re.sub(r"\W", "_", name) for name in names]
    assert len(set(exposed)) == len(exposed), "two would be one for Prometheus"
    for kind in SAMPLE_KINDS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+", kind.name), kind.name
        assert kind.description.endswith("."), kind.name
        assert len(set(kind.labels)) == len(kind.labels)


def test_a_value_has_the_labels_of_its_kind() -> None:
    kind = SampleKind("lmcache.x", "1", "X.", is_counter=True, labels=("a", "b"))
    assert kind.of(3, "one", "two") == Sample("lmcache.x", 3, ("one", "two"))
    with pytest.raises(AssertionError, match="labels"):
        kind.of(3, "one")


def test_what_an_engine_does_shows(start: Callable[..., Server]) -> None:
    server = start(l1_size_gb=1 / 16, l2_adapter=({"type": "memory"},))
    with FakeEngine(server.info.engine_endpoint, salt="tenant") as engine:
        assert engine.lookup(prompt(1), "a") == 0
        engine.end("a")
        assert engine.store(prompt(1), "a")
        assert engine.lookup(prompt(1), "b") == CHUNKS
        assert engine.retrieve(prompt(1), "b") is not None
        engine.end("b")
    with FakeEngine(server.info.engine_endpoint, model="unserved", salt="tenant") as other:
        other.worker.unregister_engine_driven(other.instance_id)
        assert other.lookup(prompt(1), "c") == 0
    assert server._parts.tiers.store.drain(10)
    found = values(server)
    whose, payload = ("model", "tenant"), engine.layout.payload_bytes
    assert found["lmcache_mp.lookups"][whose] == 2
    assert found["lmcache_mp.lookup_requested"][whose] == 2 * TOKENS
    assert found["lmcache_mp.lookup_hit_l1"][whose] == TOKENS
    assert found["lmcache.lookup.missed"][whose] == TOKENS
    assert found["lmcache.lookup.chunks"][(*whose, "missed")] == CHUNKS
    assert found["lmcache_mp.lookup_early_exit"] == {("unserved", "tenant", "no_worker"): 1}
    assert found["lmcache.lookup.missed"]["unserved", "tenant"] == TOKENS
    assert found["lmcache_mp.l1_write"][whose] == found["lmcache_mp.l1_read"][whose] == CHUNKS
    assert found["lmcache.l1.io"][(*whose, "write")] == CHUNKS * payload
    assert found["lmcache_mp.l2_store_completed_objects"] == {("memory",): CHUNKS}
    assert found["lmcache.l2.store.ended"]["memory", "stored", ""] == CHUNKS
    assert found["lmcache.l2.io"]["memory", "write"] == CHUNKS * (payload + 4096)
    assert found["lmcache.workers"] == {("model", "", "shared_memory"): 1}
    assert found["lmcache.requests"]["lookup", "ok"] == 3
    assert found["lmcache.healthy"] == {(): 1}
    assert found["lmcache.build.info"]
    status = server.status()
    assert status["chunks"]["hit_rate"] == round(CHUNKS / (3 * CHUNKS), 4)
    (tenant,) = status["tenants"]
    assert (tenant["cache_salt"], tenant["hit_l1_chunks"], tenant["missed_chunks"]) == ("tenant", CHUNKS, 2 * CHUNKS)
    assert {model["model_name"] for model in status["models"]} == {"model", "unserved"}


def test_every_value_is_of_a_kind(start: Callable[..., Server]) -> None:
    server = start(l1_size_gb=1 / 16, l2_adapter=({"type": "memory"},))
    kinds = {kind.name: kind for kind in sample_kinds(server)}
    with FakeEngine(server.info.engine_endpoint, salt="tenant") as engine:
        engine.store(prompt(1), "a")
        engine.lookup(prompt(1), "a")
        for name, value, labels, _ in samples(server):
            assert len(labels) == len(kinds[name].labels), name
            assert isinstance(value, int | float)
            assert all(isinstance(label, str) for label in labels), name


def test_it_adds_up_whenever_it_is_read(start: Callable[..., Server]) -> None:
    """Two engines store, look up and retrieve through an L1 that is too small and an adapter that fails now and then."""
    memory = {"type": "memory", "max_size_gb": 0.01}
    adapter = injected(memory, error=0.2, also={"seed": 3, "eviction": {"eviction_policy": "LRU"}})
    server = start(l1_size_gb=1 / 128, l2_adapter=(adapter,))
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(model: str) -> None:
        try:
            with FakeEngine(server.info.engine_endpoint, model=model, hidden=256) as engine:
                number = 0
                while not stop.is_set():
                    number += 1
                    tokens = prompt(number % 12)
                    engine.lookup(tokens, f"r{number}")
                    engine.retrieve(tokens, f"r{number}")
                    engine.store(tokens, f"r{number}")
                    engine.end(f"r{number}")
        except BaseException as error:  # noqa: BLE001 - raised by the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(model,)) for model in ("one", "two")]
    for thread in threads:
        thread.start()
    before: Values = {}
    loaded = 0.0
    deadline = time.monotonic() + 4
    reads = 0
    while time.monotonic() < deadline + (0 if loaded else 30):
        now = values(server)
        check(now)
        before = check_growth(before, now)
        loaded = sum(now["lmcache_mp.lookup_hit_l2"].values())
        reads += 1
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert reads > 10
    assert server._parts.tiers.store.drain(30)
    last = values(server)
    check(last)
    assert sum(last["lmcache.l2.store.pending"].values()) == 0
    assert sum(last["lmcache_mp.l1_evicted"].values()) > 0, "L1 was never full"
    assert last["lmcache.l2.store.ended"][FAULT_INJECT, "failed", "failed"] > 0, "nothing ever failed"
    assert sum(last["lmcache_mp.lookup_hit_l2"].values()) > 0, "nothing ever came from L2"


def check(now: Mapping[str, Values]) -> None:
    hit, missed = now["lmcache_mp.lookup_hit"], now["lmcache.lookup.missed"]
    for whose, requested in now["lmcache_mp.lookup_requested"].items():
        assert requested == hit[whose] + missed[whose]
        assert hit[whose] == now["lmcache_mp.lookup_hit_l1"][whose] + now["lmcache_mp.lookup_hit_l2"][whose]
    for (name,), admitted in now["lmcache.l2.store.admitted"].items():
        ended, pending = now["lmcache.l2.store.ended"], now["lmcache.l2.store.pending"]
        assert admitted == of(name, ended) + of(name, pending)
        sizes, waiting = now["lmcache.l2.store.ended.size"], now["lmcache.l2.store.pending.size"]
        assert now["lmcache.l2.store.admitted.size"][name,] == of(name, sizes) + of(name, waiting)
    capacity = now["lmcache.l1.capacity"][()]
    assert all(0 <= used <= capacity for used in now["lmcache_mp.l1_memory_usage_bytes"].values())
    assert all(value >= 0 for of_name in now.values() for value in of_name.values())


def of(name: str, found: Values) -> float:
    return sum(value for labels, value in found.items() if labels[0] == name)


def check_growth(before: Values, now: Mapping[str, Values]) -> Values:
    """Counters never fall."""
    counts = {kind.name for kind in SAMPLE_KINDS if kind.is_counter}
    flat = {(name, *labels): value for name, found in now.items() if name in counts for labels, value in found.items()}
    fallen = {what: (value, flat[what]) for what, value in before.items() if flat[what] < value}
    assert not fallen, fallen
    return flat
