"""Operators list, pin, prefetch and delete while engines store and read: no wrong byte is read, and nothing is left."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable

from core.tests.server.cache_resource import Answer, Operator, operator_of, wait_until
from core.tests.server.conftest import StartServer
from lmcache_core.app.server import Server
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine
from lmcache_devkit.l1_audit import audit

PROMPTS, CHUNKS, ROUNDS = 40, 6, 120
FORESEEN = {200, 202, 404, 409}


def prompt(number: int) -> list[int]:
    return [number * 1000 + token for token in range(CHUNKS * 16)]


def be_engine(server: Server, seed: int, done: Counter[str]) -> None:
    dice = random.Random(seed)
    with FakeEngine(server.info.engine_endpoint) as engine:
        for number in range(ROUNDS):
            tokens, request = prompt(dice.randrange(PROMPTS)), f"{seed}-{number}"
            hits = engine.lookup(tokens, request)
            read = engine.retrieve(tokens, request, 0, hits * 16) if hits else []
            if read is not None:  # what is deleted by force is found no more, though it was hit
                assert read == [engine.content(tokens, chunk) for chunk in range(hits)], "wrong bytes"
                done["chunks read"] += hits
            if hits < CHUNKS:
                engine.store(tokens, request, hits * 16)
            engine.end(request)


def be_operator(server: Server, seed: int, done: Counter[str]) -> None:
    dice = random.Random(seed)
    operator = operator_of(server)
    answer: Answer | None
    for _ in range(ROUNDS):
        chunks = {"model_name": "model", "token_ids": prompt(dice.randrange(PROMPTS))}
        name = dice.choice("abc")
        match dice.randrange(8):
            case 0:
                answer = operator.ask("GET", "/cache/objects?tier=l1&page_size=50")
            case 1:
                answer = operator.ask("GET", "/cache/objects?page_size=50")
            case 2:
                life = dice.choice((None, 0.2))
                answer = operator.ask("POST", "/cache/pin", {**chunks, "name": name, "ttl_seconds": life})
            case 3:
                answer = operator.ask("POST", "/cache/unpin", {"name": name})
            case 4:
                pin = dice.choice(({}, {"pin": True, "name": name}))
                answer = operator.ask("POST", "/cache/prefetches", {**chunks, **pin})
            case 5:
                answer = operator.ask("POST", "/cache/checksums", chunks)
            case 6:
                answer = operator.ask("POST", "/cache/clear", {"force": dice.random() < 0.2})
            case _:
                answer = delete_some(operator, dice)
        assert answer is None or answer.code in FORESEEN | {429}, answer
        done["answers"] += 1


def delete_some(operator: Operator, dice: random.Random) -> Answer | None:
    tier = dice.choice(("l1", "l2"))
    keys = [entry["key"] for entry in operator.get(f"/cache/objects?tier={tier}&page_size=10")["entries"]]
    if not keys:
        return None
    return operator.ask("DELETE", "/cache/objects", {"keys": keys, "tier": tier, "force": dice.random() < 0.5})


def test_engines_and_operators_at_once(start_server: StartServer) -> None:
    server = start_server(
        http_enabled=True,
        http_port=free_port(),
        l1_size_gb=1 / 512,
        l2_adapter=({"type": "memory", "max_size_gb": 1 / 512},),
    )
    done, faults = Counter[str](), list[BaseException]()

    def run(body: Callable[[Server, int, Counter[str]], None], seed: int) -> None:
        try:
            body(server, seed, done)
        except BaseException as error:  # noqa: BLE001 - it is shown by the test's own thread
            faults.append(error)

    threads = [threading.Thread(target=run, args=(be_engine, seed)) for seed in (1, 2)]
    threads += [threading.Thread(target=run, args=(be_operator, seed)) for seed in (3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert done["answers"] == 2 * ROUNDS
    assert done["chunks read"] > ROUNDS
    operator = operator_of(server)
    for pin in operator.get("/cache/pins")["pins"]:
        operator.post("/cache/unpin", {"name": pin["name"]})
    wait_until(lambda: server.status()["l1"]["leases"] == 0)
    status = server.status()
    assert (status["l1"]["held"], status["l1"]["quarantined"], status["l1"]["state_counts_add_up"]) == (0, 0, True)
    assert (status["pins"]["objects"], status["pins"]["size_bytes"]) == (0, 0)
    assert status["state"] != "unhealthy"
    audit(server._parts.tiers.cache)
