"""What a real server records is what happened: other tools that read it come to the same hits."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from demo.environment import quiet_environment
from demo.server_process import LMCACHE, ServerProcess
from lmcache_client import BLEND_LOOKUP
from lmcache_core import LMCacheError, ResourceError
from lmcache_devkit import FakeEngine
from lmcache_observability.trace.replay_engine import Prompt, ReplayEngine
from lmcache_observability.trace.replay_server import replay_server

CHUNK = 16
LIMITS = ["--chunk-size", str(CHUNK), "--prometheus-port", "0", "--disable-metrics"]
SALT = "tenant-with-a-secret-name"


def lmcache(*arguments: str, expected: int = 0) -> str:
    done = subprocess.run(
        [str(LMCACHE), *arguments], capture_output=True, text=True, timeout=120, env=quiet_environment(), check=False
    )
    assert done.returncode == expected, done.stderr
    return done.stdout


def prompts(count: int, seed: int = 5) -> list[list[int]]:
    """Documents that are asked about, some more often than others, each time with a tail of its own."""
    choose = random.Random(seed)
    documents = [[choose.randrange(50_000) for _ in range(CHUNK * choose.randrange(4, 40))] for _ in range(60)]
    return [
        documents[min(int(choose.paretovariate(0.7)) - 1, 59)] + [choose.randrange(50_000) for _ in range(CHUNK * 2)]
        for _ in range(count)
    ]


def serve(server: ServerProcess, asked: Sequence[Sequence[int]], **engine: Any) -> tuple[int, int]:
    """As an engine does.  Returns chunks that were asked for, and hits."""
    chunks = hits = 0
    with FakeEngine(f"tcp://127.0.0.1:{server.port}", **engine) as worker:
        for number, tokens in enumerate(asked):
            request = f"request-{number}"
            hit = worker.lookup(tokens, request)
            if hit:
                assert worker.retrieve(tokens, request, 0, hit * CHUNK) is not None
            worker.store(tokens, request, hit * CHUNK)
            worker.end(request)
            chunks, hits = chunks + len(tokens) // CHUNK, hits + hit
    return chunks, hits


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a server with room for everything."""
    tmp_path = tmp_path_factory.mktemp("recorded")
    path = tmp_path / "trace.lct"
    flags = [*LIMITS, "--l1-size-gb", "0.1", "--trace-level", "storage", "--trace-output", str(path)]
    with ServerProcess(flags, tmp_path / "log") as server:
        serve(server, prompts(40), salt=SALT)
    return path


def test_a_recording_tells_what_the_server_did(recording: Path) -> None:
    info = json.loads(lmcache("trace", "info", str(recording), "--json"))
    assert info["records"]["Lookup"] == info["records"]["Answer"] == info["records"]["Ended"] == 40
    assert (info["closed"], info["torn_bytes"], info["lost_records"]) == (True, 0, 0)
    assert info["hit_rate"] == info["ceiling"] > 0.2  # nothing was forgotten
    assert info["stored_chunks"] == info["distinct_chunks"] == info["requested_chunks"] - info["hit_chunks"]
    assert SALT.encode() not in recording.read_bytes()
    assert recording.stat().st_mode & 0o777 == 0o600
    text = lmcache("trace", "info", str(recording))
    assert "ceiling" in text
    assert SALT not in text


def test_a_replay_hits_the_same_and_finds_no_wrong_byte(recording: Path) -> None:
    flags = ["--", "--l1-size-gb", "0.1", "--disable-observability"]
    outcome = json.loads(lmcache("trace", "replay", str(recording), "--json", *flags))
    assert outcome["lookups"] == 40
    assert outcome["replayed_hits"] == outcome["recorded_hits"] == outcome["verified_chunks"] > 0
    assert (outcome["differing_lookups"], outcome["wrong_chunks"]) == (0, 0)


def test_a_replay_against_a_running_server(recording: Path, tmp_path: Path) -> None:
    with ServerProcess([*LIMITS, "--l1-size-gb", "0.1"], tmp_path / "log") as server:
        engine = ["--engine", f"tcp://127.0.0.1:{server.port}", "--speed", "1000"]
        text = lmcache("trace", "replay", str(recording), *engine)
        assert "0 lookups hit more or fewer" in text
        assert ", 0 of them wrong" in text
        again = json.loads(lmcache("trace", "replay", str(recording), "--json", *engine, "--max-requests", "10"))
        assert (again["lookups"], again["stored_chunks"]) == (10, 0)
        assert again["replayed_hits"] > again["recorded_hits"]


def test_a_replay_sees_a_wrong_byte(tmp_path: Path) -> None:
    class Careless(ReplayEngine):
        def _content(self, prompt: Prompt, index: int) -> bytes:
            return super()._content(prompt, index)[:-1] + b"x"

    prompt = Prompt("r", "m", "", [bytes([number]) * 32 for number in range(3)])
    with ServerProcess([*LIMITS, "--l1-size-gb", "0.05"], tmp_path / "log") as server:
        endpoint = f"tcp://127.0.0.1:{server.port}"
        with Careless(endpoint, CHUNK, {"m": 5000}) as careless, ReplayEngine(endpoint, CHUNK, {"m": 5000}) as engine:
            assert careless.store(prompt, 0, 2) == 2
            assert engine.store(prompt, 2, 3) == 1
            assert engine.look_up(prompt) == 3
            assert engine.retrieve(prompt, 3) == 2


def test_a_server_that_dies_under_a_replay_is_named() -> None:
    before = psutil.Process().children()

    def replay() -> None:
        with replay_server(["--l1-size-gb", "0.05", "--disable-observability"], CHUNK):
            (server,) = [child for child in psutil.Process().children() if child not in before]
            server.kill()
            while server.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.02)
            raise LMCacheError("no answer")

    with pytest.raises(ResourceError, match=r"the server for the replay ended with exit code -9: "):
        replay()


def test_a_replay_a_deletion_is_reported_to_stop_takes_its_server_along(recording: Path) -> None:
    command = [str(LMCACHE), "trace", "replay", str(recording), "--speed", "0.001", "--", "--l1-size-gb", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=quiet_environment()) as replay:
        deadline = time.monotonic() + 30
        while not (servers := psutil.Process(replay.pid).children()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        replay.terminate()
        assert replay.wait(30) == 128 + signal.SIGTERM
    assert not any(server.is_running() for server in servers)


def test_a_replay_a_deletion_is_reported_to_stop_while_it_starts_its_server_takes_it_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(psutil.Process(self.pid))
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(SystemExit) as ended, replay_server(["--l1-size-gb", "0.05"], CHUNK):
        pytest.fail("it goes on")
    assert ended.value.code == 128 + signal.SIGTERM
    assert not any(server.is_running() for server in started)


def test_a_server_with_other_chunks_is_refused(recording: Path, tmp_path: Path) -> None:
    with ServerProcess(["--chunk-size", "32", "--l1-size-gb", "0.05", *LIMITS[2:]], tmp_path / "log") as server:
        done = subprocess.run(
            [str(LMCACHE), "trace", "replay", str(recording), "--engine", f"tcp://127.0.0.1:{server.port}"],
            capture_output=True,
            text=True,
            timeout=60,
            env=quiet_environment(),
            check=False,
        )
    assert done.returncode != 0
    assert "--chunk-size 16" in done.stderr


def test_the_simulator_finds_the_hit_rate_that_the_server_had(tmp_path: Path) -> None:
    """Of a server that has to evict: the same policy at the same capacity, to within three hits in a hundred chunks."""
    path, log = tmp_path / "trace.lct", tmp_path / "lookups"
    flags = [*LIMITS, "--l1-size-gb", "0.03125", "--eviction-policy", "LRU", "--native", "off"]
    flags += ["--eviction-trigger-watermark", "0.9", "--eviction-ratio", "0.1"]
    flags += ["--trace-level", "storage", "--trace-output", str(path), "--lookup-hash-log-dir", str(log)]
    with ServerProcess(flags, tmp_path / "log") as server:
        chunks, hits = serve(server, prompts(300), layers=4, hidden=256)
        slots = server.status()["l1"]
    info = json.loads(lmcache("trace", "info", str(path), "--json"))
    assert (info["requested_chunks"], info["hit_chunks"]) == (chunks, hits)
    assert info["ceiling"] > info["hit_rate"] + 0.05, "the server had room for everything"

    converted = tmp_path / "requests"
    lmcache("trace", "convert", str(path), "--to", "simulate", "-o", str(converted))
    (lookups,) = log.iterdir()
    capacity = f"{int(0.85 * slots['capacity_bytes'] / (CHUNK * 4 * 256 * 4 + 4096))}"
    rates = []
    for trace in (converted, lookups):
        report = lmcache("simulate", str(trace), "--policy", "LRU", "--capacity", capacity, "--json", "-")
        simulated = json.loads(report)
        assert simulated["trace"]["blocks"] == chunks
        rates.append(simulated["policies"][0]["results"][0]["hit_rate"])
    assert rates[0] == rates[1]
    assert abs(rates[0] - hits / chunks) < 0.03


def test_what_was_written_before_a_crash_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.lct"
    flags = [*LIMITS, "--l1-size-gb", "0.1", "--trace-level", "events", "--trace-output", str(path)]
    with ServerProcess(flags, tmp_path / "log") as server:
        serve(server, prompts(20))
        server.status()
        wait_for_size(path, 10_000)
        server.kill()
    info = json.loads(lmcache("trace", "info", str(path), "--json"))
    assert not info["closed"]
    assert info["level"] == "events"
    assert {"Lookup", "Answer", "Stored", "WorkerRegistered"} <= info["records"].keys()


def test_events_of_a_plugin_are_recorded_with_their_salts_hidden(tmp_path: Path) -> None:
    path = tmp_path / "trace.lct"
    flags = [
        *LIMITS,
        "--l1-size-gb",
        "0.1",
        "--engine-type",
        "blend",
        "--trace-level",
        "events",
        "--trace-output",
        str(path),
    ]
    tokens = list(range(3 * CHUNK))
    with ServerProcess(flags, tmp_path / "log") as server:
        with FakeEngine(f"tcp://127.0.0.1:{server.port}", salt=SALT) as engine:
            engine.store(tokens)
            key = engine.key([1, *tokens], "r", 0, 1 + len(tokens), of_worker=False)
            assert len(engine.scheduler.call(BLEND_LOOKUP, key, 10.0).segments) == 3
        server.stop()
    assert json.loads(lmcache("trace", "info", str(path), "--json"))["records"]["BlendLookupAnswered"] == 1
    assert SALT.encode() not in path.read_bytes()


def wait_for_size(path: Path, size: int) -> None:
    deadline = time.monotonic() + 20
    while os.path.getsize(path) < size:
        assert time.monotonic() < deadline
        time.sleep(0.05)
