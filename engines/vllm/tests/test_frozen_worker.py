"""A worker process that is stopped in the middle of a copy, taken for dead meanwhile, and goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from demo.server_process import ServerProcess
from engines.vllm.tests.test_worker_transfers import OPTIONS, TOKENS, quiet
from engines.vllm.tests.worker_kit import fused_hnd, rig, transfer, until
from lmcache_devkit.fake_engine import FakeEngine
from lmcache_vllm.transfer_pages import ChunkPages

BLOCKS = [[*range(1, 9)]]
CHUNK_TOKENS = 32
ROUNDS = 40


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess([*OPTIONS, "--worker-reap-timeout-seconds", "2"], tmp_path / "log") as process:
        yield process


def test_it_writes_into_no_slot_of_another_engine(server: ServerProcess) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", __name__, str(server.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        wait_for(child.stdout, "copying")
        os.kill(child.pid, signal.SIGSTOP)
        assert until(lambda: not server.status()["workers"], 30.0)
        # Its chunks are as large as the worker's, so that they get the same slots.
        with FakeEngine(f"tcp://127.0.0.1:{server.port}", model="other", layers=3, hidden=32) as other:
            prompts = [[number * 1000 + token for token in range(8 * CHUNK_TOKENS)] for number in range(ROUNDS)]
            for prompt in prompts:
                assert other.store(prompt)
            os.kill(child.pid, signal.SIGCONT)
            print("go on", file=child.stdin, flush=True)
            wait_for(child.stdout, "over")
            for number, prompt in enumerate(prompts):
                found = other.retrieve(prompt, f"read {number}")
                assert found == [other.content(prompt, chunk) for chunk in range(8)], f"prompt {number} has wrong bytes"
        assert until(lambda: quiet(server)), "it has reported that it touches nothing more"
        assert child.poll() is None
    finally:
        child.kill()
        child.communicate()


def wait_for(output: IO[str], line: str) -> None:
    for said in output:
        if said.strip() == line:
            return
    raise AssertionError(f"the worker ended without having said: {line}")


def be_the_worker(port: int) -> None:
    """Store, and wait for a line before anything is written."""
    real = ChunkPages.gather

    def gather(self: ChunkPages, tables: Any, chunks: Any, addresses: Any, layer: int | None = None) -> int:
        print("copying", flush=True)
        sys.stdin.readline()
        return real(self, tables, chunks, addresses, layer)

    with rig(port, fused_hnd(), heartbeat_seconds=0.3) as worker:
        ChunkPages.gather = gather  # type: ignore[method-assign]
        worker.step(stores=(transfer(TOKENS, BLOCKS),))
        assert worker.until(lambda: any(name.startswith("failed_stores:") for name in worker.counts))
        print("over", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    be_the_worker(int(sys.argv[1]))
