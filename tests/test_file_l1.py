"""An L1 that is a file: whole servers, engines that get their bytes in-band, L2 behind it, kills, and a disk that fails."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from demo.server_process import ServerProcess
from lmcache_client.errors import LMCacheError
from lmcache_devkit.fake_engine import FakeEngine
from tests.conftest import StartServer

CHUNK_TOKENS = 32
CHUNKS = 8
PROMPTS = [[number, *range(CHUNKS * CHUNK_TOKENS)] for number in range(6)]
SIZE = ("--l1-size-gb", "0.0625", "--chunk-size", str(CHUNK_TOKENS))


def engine_of(server: ServerProcess, timeout_seconds: float = 10.0) -> FakeEngine:
    return FakeEngine(f"tcp://127.0.0.1:{server.port}", hidden=512, timeout_seconds=timeout_seconds)  # 128 KiB a chunk


def take(engine: FakeEngine, prompt: list[int], request: str) -> int:
    """Chunks that were hit, every byte of them right."""
    hits = engine.lookup(prompt, request)
    if hits:
        key = engine.key(prompt, request, 0, hits * CHUNK_TOKENS)
        reply = engine.worker.prepare_retrieve(key, engine.instance_id)
        assert reply.success
        places = [reply.data.find(engine.content(prompt, chunk)) for chunk in range(hits)]
        assert -1 not in places
        assert places == sorted(places)
        engine.worker.commit_retrieve(key, engine.instance_id)
    engine.end(request)
    return hits


def test_engines_store_and_retrieve_and_a_stop_leaves_nothing(start_server: StartServer, tmp_path: Path) -> None:
    disk = tmp_path / "nvme"
    disk.mkdir()
    server = start_server(*SIZE, "--gds-l1-path", str(disk))
    with engine_of(server) as engine:
        assert engine.segment is None, "there is nothing that an engine could map"
        assert all(engine.store(prompt, str(number)) for number, prompt in enumerate(PROMPTS))
        assert [take(engine, prompt, str(number)) for number, prompt in enumerate(PROMPTS)] == [CHUNKS] * len(PROMPTS)
    l1 = server.status()["l1"]
    assert (l1["kind"], l1["segment"], l1["file"]) == ("file", None, str(disk / "lmcache-l1.slab"))
    assert (l1["backed_bytes"], l1["state_counts_add_up"]) == (2**26, True)
    assert (disk / "lmcache-l1.slab").stat().st_blocks * 512 >= 2**26
    assert server.stop() == 0
    assert list(disk.iterdir()) == []


def test_l2_fills_it_again_after_a_restart(start_server: StartServer, tmp_path: Path) -> None:
    adapter = json.dumps({"type": "fs", "base_path": str(tmp_path / "l2")})
    server = start_server(*SIZE, "--gds-l1-path", str(tmp_path / "slab"), "--l2-adapter", adapter)
    with engine_of(server) as engine:
        for number, prompt in enumerate(PROMPTS):
            assert engine.store(prompt, str(number))
    assert server.stop() == 0
    server.start()
    with engine_of(server) as engine:
        assert [take(engine, prompt, str(number)) for number, prompt in enumerate(PROMPTS)] == [CHUNKS] * len(PROMPTS)
    status = server.status()
    assert status["l2"][0]["loaded"] == CHUNKS * len(PROMPTS)
    assert status["prefetch"]["rejected"] == 0


def test_nothing_of_a_killed_server_is_served(start_server: StartServer, tmp_path: Path) -> None:
    """Killed while an engine stores, over and over: the next server begins empty, whatever lies in the file."""
    server = start_server(*SIZE, "--gds-l1-path", str(tmp_path / "slab"))
    for number in range(4):
        started = threading.Event()

        def store(started: threading.Event = started) -> None:
            engine = engine_of(server, timeout_seconds=1.0)
            try:
                engine.register()
                for request in range(1000):
                    started.set()
                    engine.store(PROMPTS[request % len(PROMPTS)], str(request))
            except LMCacheError:
                pass  # no answer: it was killed, as is the point
            finally:
                engine.close()

        storing = threading.Thread(target=store)
        storing.start()
        assert started.wait(10)
        time.sleep(0.02 * number)
        server.kill()
        storing.join(10)
        assert (tmp_path / "slab").exists(), "a killed server leaves its file"
        server.start()
        with engine_of(server) as engine:
            assert [take(engine, prompt, str(request)) for request, prompt in enumerate(PROMPTS)] == [0] * len(PROMPTS)
            assert engine.store(PROMPTS[0], "again")
            assert take(engine, PROMPTS[0], "again") == CHUNKS


def test_a_file_of_another_server_is_refused_by_name(start_server: StartServer, tmp_path: Path) -> None:
    first = start_server(*SIZE, "--gds-l1-path", str(tmp_path / "slab"), "--instance-id", "the-first")
    second = ServerProcess((*SIZE, "--gds-l1-path", str(tmp_path / "slab")), tmp_path / "second.log")
    with pytest.raises(Exception, match="ended before it answered"):
        second.start()
    assert f"gds_l1_path: '{tmp_path / 'slab'}' is in use by server 'the-first' (pid {first.pid} on" in second.log
    with engine_of(first) as engine:
        assert engine.store(PROMPTS[0])
        assert take(engine, PROMPTS[0], "r") == CHUNKS


def test_a_disk_that_loses_bytes_fails_requests_and_not_the_server(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(*SIZE, "--gds-l1-path", str(tmp_path / "slab"))
    with engine_of(server) as engine:
        for number, prompt in enumerate(PROMPTS):
            assert engine.store(prompt, str(number))
        os.truncate(tmp_path / "slab", 0)  # what a read of a broken disk does to a mapping
        prompt = PROMPTS[0]
        assert engine.lookup(prompt, "broken") == CHUNKS
        reply = engine.worker.prepare_retrieve(engine.key(prompt, "broken", 0, 256), engine.instance_id)
        assert not reply.success
        assert engine.store([99, *range(256)], "more") is False
        engine.end("broken")
    assert server.status()["healthy"]
    assert server.logs("Bad address")
