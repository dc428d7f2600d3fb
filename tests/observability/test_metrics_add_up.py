"""Metrics of a server under which everything goes wrong at once: what must add up does, in every scrape."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from core.tests.injected import injected, mock
from demo.server_process import HOST, ServerProcess
from lmcache_client.operations import END_SESSION, LOOKUP
from lmcache_devkit import FakeEngine, free_port
from tests.observability.scrapes import Labels, Scrape, Watch, check_sums, scrape
from tests.test_reconfigure import ask, wait_for

SECONDS = 8.0
PROMPTS = 60
CHUNK = 16
EVICTION = {"eviction_policy": "LRU", "trigger_watermark": 0.6}


class Customer(threading.Thread):
    """Engines of one model and salt, and what they know that the server must have counted."""

    def __init__(self, endpoint: str, model: str, salt: str, *, seed: int, maps_memory: bool = True) -> None:
        super().__init__()
        self.tenant = (model, salt)
        self.counts: Counter[str] = Counter()
        self._endpoint, self._maps_memory = endpoint, maps_memory
        self._random = random.Random(seed)
        self._ends_at = time.monotonic() + SECONDS
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            number = 0
            while time.monotonic() < self._ends_at:
                with self._engine() as engine:  # left without a word, as a killed engine leaves
                    for _ in range(self._random.randrange(20, 60)):
                        number += 1
                        self._request(engine, f"{self.tenant}-{number}")
                    self._die(engine)
        except BaseException as failure:  # noqa: BLE001 - raised by the test
            self.failure = failure

    def _engine(self) -> FakeEngine:
        model, salt = self.tenant
        return FakeEngine(self._endpoint, model=model, salt=salt, maps_memory=self._maps_memory)

    def _request(self, engine: FakeEngine, request: str) -> None:
        tokens = self._tokens()
        hit = self._look_up(engine, tokens, request)
        if hit:
            found = engine.retrieve(tokens, request, 0, hit * CHUNK) if self._maps_memory else None
            if found:
                assert found == [engine.content(tokens, chunk) for chunk in range(hit)], "wrong bytes"
                self.counts["read_chunks"] += hit
                self.counts["read_bytes"] += hit * engine.layout.payload_bytes
        if hit < len(tokens) // CHUNK:
            self._store(engine, tokens, request, hit)
        if self._random.random() < 0.9:
            engine.end(request)

    def _look_up(self, engine: FakeEngine, tokens: Sequence[int], request: str) -> int:
        hit = engine.lookup(tokens, request)
        self.counts["lookups"] += 1
        self.counts["requested"] += len(tokens)
        self.counts["hit"] += hit * CHUNK
        return hit

    def _store(self, engine: FakeEngine, tokens: Sequence[int], request: str, hit: int) -> None:
        start, end = hit * CHUNK, engine.whole(tokens)
        key = engine.key(tokens, request, start, end)
        reply = engine.worker.prepare_store(key, engine.instance_id)
        slots, indexes = reply.context.slots, reply.context.chunk_indices
        if not isinstance(slots, tuple) or not isinstance(indexes, tuple) or not slots:
            return
        for slot, index in zip(slots, indexes, strict=True):
            engine.write(slot, engine.content(tokens, hit + index))
        if engine.worker.commit_store(key, engine.instance_id):
            self.counts["stores"] += 1
            self.counts["stored_chunks"] += len(slots)
            self.counts["stored_bytes"] += len(slots) * engine.layout.payload_bytes

    def _die(self, engine: FakeEngine) -> None:
        """With slots of its own, and a lookup that no worker picks up."""
        tokens = self._tokens()
        self._look_up(engine, tokens, "the last")
        engine.worker.prepare_store(engine.key(tokens, "the last", 0, engine.whole(tokens)), engine.instance_id)

    def _tokens(self) -> Sequence[int]:
        """Some end in the middle of a chunk."""
        number = self._random.randrange(PROMPTS)
        return range(number * 1000, number * 1000 + 8 * CHUNK + number % 3)


class Fickle(Customer):
    """Its lookups are superseded, or ended at once: who knows which were answered?"""

    def _request(self, engine: FakeEngine, request: str) -> None:
        tokens = self._tokens()
        tickets = [
            engine.scheduler.send(LOOKUP, engine.key(tokens, request, 0, engine.whole(tokens), of_worker=False), 1)
            for _ in range(2)
        ]
        self.counts["started"] += len(tickets)
        tickets.append(engine.scheduler.send(END_SESSION, request))
        for ticket in tickets:
            engine.scheduler.receive(ticket)

    def _look_up(self, engine: FakeEngine, tokens: Sequence[int], request: str) -> int:
        self.counts["started"] += 1
        return engine.lookup(tokens, request)

    def _tokens(self) -> Sequence[int]:
        number = self._random.randrange(PROMPTS)
        return range(number * 1000, number * 1000 + 8 * CHUNK)


class Operator(threading.Thread):
    """Clears, changes quotas, and adds and removes an adapter."""

    def __init__(self, server: ServerProcess, customers: Sequence[Customer]) -> None:
        super().__init__()
        self._server, self._customers = server, customers
        self.answers: Counter[int] = Counter()

    def run(self) -> None:
        adapter = {"type": "memory", "max_size_gb": 0.001, "eviction": EVICTION}
        while any(customer.is_alive() for customer in self._customers):
            added = self._ask("POST", "/l2/adapters", adapter)
            self._ask("POST", "/cache/clear", {"force": False})
            self._ask("PUT", "/quota/pays", {"limit_gb": 0.0005})
            self._ask("POST", "/cache/clear", {"force": True})
            self._ask("DELETE", "/quota/pays")
            if "name" in added:  # it may differ from time to time: the one before may not be gone yet
                self._ask("DELETE", f"/l2/adapters/{added['name']}?deadline_seconds=0.5")

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        code, answer = ask(self._server, method, path, body)
        self.answers[code] += 1
        time.sleep(0.15)
        return answer


def resets(labels: Labels) -> bool:
    """Counters of an adapter, and of its threads, begin when it is added."""
    return any("memory-" in value for _, value in labels)


@pytest.fixture
def server_and_port(tmp_path: Path) -> tuple[ServerProcess, int]:
    port = free_port()
    also = {"eviction": EVICTION, "seed": 42}
    shaky = injected(mock(0.002, 2e6), error=0.3, stall=0.002, lost=0.002, torn=0.02, delay=0.2, also=also)
    steady = {"type": "memory", "max_size_gb": 0.002, "eviction": EVICTION}
    options = ["--chunk-size", str(CHUNK), "--l1-size-gb", "0.008", "--eviction-policy", "IsolatedLRU"]
    for plugin in ("devkit", "observability", "policies"):
        options += ["--plugin", plugin]
    options += ["--l2-adapter", json.dumps(shaky), "--l2-adapter", json.dumps(steady)]
    options += ["--l2-timeout-seconds", "0.5", "--lookup-timeout-seconds", "0.4", "--drain-seconds", "1"]
    options += ["--worker-registration-grace-seconds", "2", "--l1-read-ttl-seconds", "2"]
    options += ["--prometheus-port", str(port), "--metrics-sample-rate", "1", "--l2-store-max-backlog-gb", "0.0002"]
    return ServerProcess(options, tmp_path / "server.log"), port


def test_whatever_happens_it_adds_up(server_and_port: tuple[ServerProcess, int]) -> None:
    server, port = server_and_port
    with server:
        endpoint = f"tcp://{HOST}:{server.port}"
        customers = [
            Customer(endpoint, "m1", "pays", seed=1),
            Customer(endpoint, "m1", "", seed=2),
            Customer(endpoint, "m2", 'a"b c', seed=3),
            Fickle(endpoint, "m1", "fickle", seed=4),
        ]
        operator = Operator(server, customers)
        with Watch(port, check_sums, resets) as watch:
            for thread in (*customers, operator):
                thread.start()
            for thread in (*customers, operator):
                thread.join()
            assert [customer.failure for customer in customers] == [None] * 4
            wait_for(lambda: is_quiet(scrape(port)))
        last = scrape(port)
        watch.take(last)
        assert watch.wrong == []
        assert watch.scrapes > 20
        assert set(operator.answers) <= {200, 201, 202, 204, 409}, operator.answers
        check_customers(last, customers[:3])
        check_fickle(last, customers[3])
        check_events(last)
        ends = last.by("lmcache_l2_store_ended_total", "result")
        assert min(ends[result,] for result in ("stored", "failed", "dropped")) > 0, ends
        assert "lmcache_requests" in last.families()


def is_quiet(found: Scrape) -> bool:
    """Every lookup has ended, nothing is on its way, and all events have been worked off."""
    waits = ("lmcache_l2_store_pending", "lmcache_mp_active_prefetch_jobs", "lmcache_mp_event_bus_queue_depth")
    return not any(found.sum(name) for name in (*waits, "lmcache_l2_jobs_in_flight", "lmcache_lookup_open"))


def check_customers(found: Scrape, customers: Sequence[Customer]) -> None:
    for customer in customers:
        model, salt = customer.tenant

        def of(name: str, model: str = model, salt: str = salt, **only: str) -> float:
            return found.sum(name, model_name=model, cache_salt=escaped(salt), **only)

        counted = {
            "lookups": of("lmcache_mp_lookups_requests_total"),
            "requested": of("lmcache_mp_lookup_requested_tokens_total"),
            "hit": of("lmcache_mp_lookup_hit_tokens_total"),
            "stores": of("lmcache_l1_transfers_total", direction="store", result="done"),
            "stored_chunks": of("lmcache_mp_l1_write_chunks_total"),
            "stored_bytes": of("lmcache_l1_io_bytes_total", direction="write"),
            "read_chunks": of("lmcache_mp_l1_read_chunks_total"),
            "read_bytes": of("lmcache_l1_io_bytes_total", direction="read"),
        }
        assert counted == dict(customer.counts), customer.tenant
        assert of("lmcache_lookup_abandoned_total") == 0


def escaped(salt: str) -> str:
    return salt.replace("\\", r"\\").replace('"', r"\"")


def check_fickle(found: Scrape, fickle: Customer) -> None:
    answered = found.sum("lmcache_mp_lookups_requests_total", cache_salt="fickle")
    assert answered + found.sum("lmcache_lookup_abandoned_total", cache_salt="fickle") == fickle.counts["started"]
    assert found.sum("lmcache_mp_lookup_requested_tokens_total", cache_salt="fickle") == answered * 8 * CHUNK


def check_events(found: Scrape) -> None:
    """None was dropped, so that distributions of events have as many as the counts."""
    assert found.sum("lmcache_mp_event_bus_dropped_events_total") == 0
    lookups = found.sum("lmcache_mp_lookups_requests_total")
    assert found.sum("lmcache_lookup_duration_seconds_count") == lookups > 0
    stores = found.sum("lmcache_l1_transfers_total", direction="store", result="done")
    assert found.sum("lmcache_store_duration_seconds_count") == stores > 0
    for name in ("store", "load", "lookup"):
        counted = found.by(f"lmcache_l2_{name}_duration_seconds_count", "l2_name")
        given = found.by("lmcache_l2_jobs_total", "l2_name", operation=name)
        for adapter, count in given.items():
            assert counted.get(adapter, 0.0) == count, (name, adapter)
        assert given["memory",] > 0, name
