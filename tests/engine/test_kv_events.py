"""A real vLLM with the stock connector and KV events on: its own publisher says what L1 gains and loses."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import zmq

from demo.engine_process import EngineProcess
from demo.prompts import random_prompt
from demo.server_process import ServerProcess
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess
from tests.engine.site import CHUNK_TOKENS, HEARTBEAT_SECONDS

SECONDS = 60.0
PROMPTS = 12
CHUNKS = 4
CPU = "CPU"


class Index:
    """What a router keeps that knows an engine's events alone: hashes in memory, as vLLM publishes them (their last 64 bits),
    and the tokens of each."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self.tokens: dict[int, list[int]] = {}
        self.removed = 0

    def read(self) -> None:
        while self._socket.poll(100):
            _, _, data = self._socket.recv_multipart()
            for event in msgspec.msgpack.decode(data)[1]:
                if event.get("medium") != CPU:
                    continue  # of the engine's own memory
                if event["type"] == "BlockStored":
                    self.tokens |= dict.fromkeys(event["block_hashes"], event["token_ids"])
                else:
                    self.removed += len(event["block_hashes"])
                    for block in event["block_hashes"]:
                        self.tokens.pop(block, None)


def l1_hashes(server: ServerProcess) -> set[str]:
    url = f"http://127.0.0.1:{server.http_port}/cache/objects?tier=l1&page_size=1000"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return {entry["chunk_hash"] for entry in json.load(answer)["entries"]}


@contextmanager
def subscribed(endpoint: str) -> Iterator[Index]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.linger = 0
    socket.subscribe(b"")
    socket.connect(endpoint)
    try:
        yield Index(socket)
    finally:
        context.destroy(0)


@pytest.mark.engine
@pytest.mark.slow
def test_a_routers_index_is_l1_and_the_directory(engine_environment: None, tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/events"
    with CoordinatorProcess(tmp_path) as coordinator, subscribed(endpoint) as index:
        options = ["--l1-size-gb", "0.02", "--chunk-size", str(CHUNK_TOKENS), "--instance-id", "one"]
        options += ["--coordinator-url", coordinator.url, "--coordinator-l2-event-flush-interval", "0.1"]
        with ServerProcess(options, tmp_path / "server.log") as server:
            extra = {"lmcache.mp.heartbeat_interval": HEARTBEAT_SECONDS}
            engine = EngineProcess(
                tmp_path / "engine.log",
                port=server.port,
                options=("--kv-events", endpoint, "--prefix-caching"),
                extra=extra,
            )
            engine.start()
            try:
                prompts = [random_prompt(number, CHUNKS * CHUNK_TOKENS + 1) for number in range(PROMPTS)]
                for prompt in prompts:
                    engine.ask([prompt])
                until = time.monotonic() + SECONDS
                while True:
                    engine.ask([random_prompt(0, 8)])  # events leave an engine with its steps
                    index.read()
                    l1 = l1_hashes(server)
                    rows = coordinator.ask("GET", "/directory/stats").body["keys_by_location"]
                    known = [row["keys"] for row in rows if row["instance_id"] == "one" and row["source"] == "l1"]
                    if l1 and set(index.tokens) == {int(chunk[-16:], 16) for chunk in l1} and known == [len(l1)]:
                        break
                    assert time.monotonic() < until, (len(index.tokens), len(l1), known)
                assert index.removed > 0, "L1 never was full"
                chunks = [
                    prompt[at : at + CHUNK_TOKENS]
                    for prompt in prompts
                    for at in range(0, CHUNKS * CHUNK_TOKENS, CHUNK_TOKENS)
                ]
                assert all(tokens in chunks for tokens in index.tokens.values())
            finally:
                engine.kill()
