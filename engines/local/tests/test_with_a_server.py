"""An engine and a server that use one folder find each other's chunks, byte for byte."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.local.tests.parts import BLOCK, CHUNK, config, fill, kv_cache, metadata, opened, slots
from lmcache_client import EngineClient, EngineKey, L1Segment, NoAnswerError, ObjectLayout, encode_tokens
from lmcache_client.messages import LayoutPart, WorkerRegistration
from lmcache_engine import CreateGPUConnector, EngineType

TOKENS = [(7 * i * i + 3) % 1000 for i in range(4 * CHUNK)]
THERE, ELSEWHERE = range(8), range(100, 108)
CHUNKS, END = range(4), 4 * CHUNK
START_SECONDS = 60


def adapter(folder: Path) -> dict[str, Any]:
    return {"type": "fs", "base_path": str(folder)}


@contextmanager
def engine_over(folder: Path, kv: list[torch.Tensor]) -> Iterator[Any]:
    own = {"server": {"l2_adapter": [adapter(folder)], "plugins": ["fs"]}}
    with opened(kv, extra_config=own) as engine:
        yield engine


class ServersWorker:
    """Copies between a KV cache and the memory of a server that uses the folder."""

    def __init__(self, endpoint: str, kv: list[torch.Tensor]) -> None:
        self.client = EngineClient(endpoint, timeout_seconds=START_SECONDS)
        assert self.client.get_chunk_size() == CHUNK
        self.pages = CreateGPUConnector(config(), metadata(), EngineType.VLLM, {"kv_layout": "HND"})
        self.pages.register(kv)
        layout = self.pages.layout
        assert isinstance(layout, ObjectLayout)
        part = LayoutPart(
            layout.kv_axis, layout.layers, layout.slots, layout.hidden, layout.dtype, layout.block_slots, layout.order
        )
        offer = self.client.register_worker(WorkerRegistration(1, "tiny", 1, 0, (part,)))
        self.segment = L1Segment(offer.shm_name, offer.pool_size)

    def key(self, worker: int | None) -> EngineKey:
        return EngineKey("tiny", 1, worker, encode_tokens(TOKENS), 0, END, "r", "", None, 1)

    def addresses(self, found: Any) -> list[int]:
        return [self.segment._address + slot.offset for slot in found]

    def store(self) -> None:
        context = self.client.prepare_store(self.key(0), 1).context
        assert context.chunk_indices == tuple(CHUNKS)
        self.pages.to_objects(slots(THERE), CHUNKS, END, self.addresses(context.slots))
        assert self.client.commit_store(self.key(0), 1)

    def retrieve(self) -> int:
        chunks = self.client.lookup_hits(self.key(None))
        if chunks:
            reply = self.client.prepare_retrieve(self.key(0), 1)
            assert reply.success
            self.pages.from_objects(slots(ELSEWHERE), CHUNKS, END, self.addresses(reply.context.slots))
            self.client.commit_retrieve(self.key(0), 1)
        return chunks

    def close(self) -> None:
        self.client.close()
        self.segment.close()


@contextmanager
def server_over(folder: Path, tmp_path: Path, kv: list[torch.Tensor]) -> Iterator[ServersWorker]:
    (endpoint_folder := tmp_path / "port").mkdir(exist_ok=True)
    endpoint = f"ipc://{endpoint_folder}/s"
    command = [sys.executable, "-c", "from lmcache_core.app.cli import main; raise SystemExit(main())", "server"]
    flags = ["--host", endpoint, "--plugin", "fs", "--chunk-size", str(CHUNK), "--l1-size-gb", "0.02"]
    log = tmp_path / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, *flags, "--l2-adapter", json.dumps(adapter(folder))], stdout=output, stderr=output
        )
    worker = None
    try:
        worker = ServersWorker(endpoint, kv)
        yield worker
    except NoAnswerError:
        process.kill()
        pytest.fail(log.read_text())
    finally:
        if worker is not None:
            worker.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(START_SECONDS) in (0, -signal.SIGKILL), log.read_text()


def check(kv: list[torch.Tensor]) -> None:
    right = kv_cache()
    fill(right, THERE, TOKENS)
    whole = END // BLOCK
    for mine, stored in zip(kv, right, strict=True):
        assert torch.equal(mine[ELSEWHERE.start : ELSEWHERE.start + whole], stored[:whole])


def test_an_engine_finds_what_a_server_stored(tmp_path: Path) -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with server_over(tmp_path / "kv", tmp_path, kv) as worker:
        worker.store()
    again = kv_cache()
    with engine_over(tmp_path / "kv", again) as engine:
        assert engine.lookup(TOKENS) == END
        assert engine.retrieve(TOKENS, slot_mapping=slots(ELSEWHERE)).all()
    check(again)


def test_a_server_finds_what_an_engine_stored(tmp_path: Path) -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with engine_over(tmp_path / "kv", kv) as engine:
        engine.store(TOKENS, slot_mapping=slots(THERE))
    again = kv_cache()
    with server_over(tmp_path / "kv", tmp_path, again) as worker:
        assert worker.retrieve() == len(CHUNKS)
    check(again)
