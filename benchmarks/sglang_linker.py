"""Time to the first token of SGLang on the CPU: without a cache, and with the linker, its own client and the public server.

    .venv/bin/python -m benchmarks.sglang_linker [--tokens 8192] [--rounds 3] [--only none,public,stock,linker]

One engine and one server for each subject, all up at once, one at work at a time; they take turns, and each begins a round as
often.  A prompt is new (cold), asked again (L1), and asked when the server's L1 was emptied (disk: files in the kernel's page
cache).  Before each, the engine's own cache is emptied.  CPU is that of all processes until nothing is stored any more.  Each
engine computes with one thread, and has the attention of `sglang_engine.py`.  The linker alone is measured by `sglang_load.py`,
for loads and memory.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import machine
from benchmarks.first_token import (
    ANSWER_SECONDS,
    CHUNK_TOKENS,
    KV_BYTES_PER_TOKEN,
    STORE_SECONDS,
    end_server,
    make_model,
    processes_cpu_seconds,
)
from benchmarks.results import Results
from benchmarks.transfer import PUBLIC_SERVER
from demo.child_process import ChildError
from demo.l2_folder import L2Folder
from demo.prompts import random_prompt
from demo.server_process import ServerProcess
from demo.sglang_process import SGLANG_PYTHON, SglangProcess, sglang_environment
from lmcache_client import EngineChannel

SUBJECTS: Final = {
    "none": "SGLang alone",
    "public": "`--enable-lmcache`, the public server",
    "stock": "`--enable-lmcache`, this server",
    "linker": "lmcache-sglang, this server",
}
MODEL: Final = "kv64k-float32"
PAGE_TOKENS: Final = 64
WARM_TOKENS: Final = 2_048
QUIET_SECONDS: Final = 3.0
"""Nothing is written for as long when all is stored."""
PATIENT: Final = {"prefetch_timeout_seconds": 60, "lookup_timeout_ms": 20_000}
STEPS: Final = ("cold", "l1", "disk")
MIB: Final = 1 << 20


class Side:
    """One subject's engine and server."""

    def __init__(self, subject: str, model: Path, tokens: int, folder: Path, stack: ExitStack) -> None:
        self.subject = subject
        self.l2 = L2Folder(folder / subject)
        self.server: ServerProcess | None = None
        if subject != "none":
            self.server = self._new_server(tokens, folder / f"{subject}-server.log")
            self.server.start()
            stack.callback(end_server, self.server)
        slots = -(-(tokens + 2 * WARM_TOKENS) // PAGE_TOKENS) * PAGE_TOKENS
        self.engine = SglangProcess(
            folder / f"{subject}-engine.log",
            port=self.server.port if self.server else None,
            model=model,
            page_size=PAGE_TOKENS,
            linker=subject == "linker",
            client=PATIENT if subject == "linker" else None,
            driver="benchmarks.sglang_engine",
            options={"max_total_tokens": slots, "context_length": tokens + 512, "chunked_prefill_size": slots},
        )
        stack.callback(self.engine.kill)
        self.engine.start()
        for seed in (9_001, 9_002):  # a first touch of memory is the kernel's time
            self.measure("warm", random_prompt(seed, min(tokens, WARM_TOKENS)), cached=False)
        self.empty_l1()

    def _new_server(self, tokens: int, log_path: Path) -> ServerProcess:
        self.l2.path.mkdir()
        l1_gb = 0.5 + 2 * tokens * KV_BYTES_PER_TOKEN / 2**30
        options = ["--l1-size-gb", f"{l1_gb:.2f}", "--no-l1-use-lazy", "--chunk-size", str(CHUNK_TOKENS)]
        options += self.l2.adapter_option()
        if self.subject != "public":
            return ServerProcess(options, log_path)
        options += ["--eviction-policy", "LRU", "--supported-transfer-mode", "auto"]
        options += ["--shm-name", f"sglang-{os.getpid()}"]
        return ServerProcess(options, log_path, executable=PUBLIC_SERVER)

    def measure(self, name: str, prompt: Sequence[int], *, cached: bool) -> dict[str, float]:
        """Raises RuntimeError where the cache has not what it should."""
        self.engine.flush()
        before = self._cpu_seconds()
        (answer,) = self.engine.ask([prompt], max_tokens=1, timeout_seconds=ANSWER_SECONDS)
        self._wait_quiet()
        if answer.cached_tokens < len(prompt) - CHUNK_TOKENS if cached else answer.cached_tokens:
            raise RuntimeError(f"{self.subject}, {name}: {answer.cached_tokens} of {len(prompt)} tokens were cached")
        used = {key: seconds - before[key] for key, seconds in self._cpu_seconds().items()}
        return {f"{name}_s": answer.seconds_to_first_token} | {f"{name}_{key}": value for key, value in used.items()}

    def empty_l1(self) -> None:
        if self.server:
            with EngineChannel(f"tcp://127.0.0.1:{self.server.port}") as channel:
                channel.clear()

    def _cpu_seconds(self) -> dict[str, float]:
        server = {"server_cpu_s": processes_cpu_seconds(self.server.pid)} if self.server else {}
        return {"engine_cpu_s": processes_cpu_seconds(self.engine.pid), **server}

    def _wait_quiet(self) -> None:
        """Block until nothing is written to the disk any more."""
        deadline, quiet_since, known = time.monotonic() + STORE_SECONDS, time.monotonic(), -1
        while time.monotonic() - quiet_since < (QUIET_SECONDS if self.server else 0):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.subject}: still stores after {STORE_SECONDS:.0f} s")
            time.sleep(0.1)
            if (stored := sum(1 for _ in self.l2.path.rglob("*"))) != known:
                known, quiet_since = stored, time.monotonic()


def run_engines(subjects: Sequence[str], tokens: int, rounds: int, results: Results) -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        model = make_model(MODEL, Path(name))
        sides = [Side(subject, model, tokens, Path(name), stack) for subject in subjects]
        for number in range(rounds):
            prompt = random_prompt(100 + number, tokens)
            turn = number % len(sides)
            for step in STEPS:
                for side in (*sides[turn:], *sides[:turn]):
                    if step != "cold" and not side.server:
                        continue
                    if step == "disk":
                        side.empty_l1()
                    add(results, side.subject, number, tokens, side.measure(step, prompt, cached=step != "cold"))
            for side in sides:
                side.empty_l1()


def run_loads(tokens: int, rounds: int, results: Results) -> None:
    l1_gb = 0.5 + 2 * tokens * KV_BYTES_PER_TOKEN / 2**30
    options = ["--l1-size-gb", f"{l1_gb:.2f}", "--no-l1-use-lazy"]
    with tempfile.TemporaryDirectory() as name, ServerProcess(options, Path(name) / "server.log") as server:
        command = [str(SGLANG_PYTHON), "-m", "benchmarks.sglang_load", str(server.port), str(tokens), str(rounds)]
        ran = subprocess.run(
            command, env=sglang_environment(), stdout=subprocess.PIPE, text=True, timeout=600, check=True
        )
    found = json.loads(ran.stdout.splitlines()[-1])
    add(results, "linker", 0, tokens, {"store_s": found["store_s"], "beyond_mib": found["beyond_bytes"] / MIB})
    for number, (first, whole) in enumerate(zip(found["first_s"], found["whole_s"], strict=True)):
        add(results, "linker", number, tokens, {"first_layer_s": first, "load_s": whole, "layer_share": first / whole})


def add(results: Results, subject: str, number: int, tokens: int, figures: Mapping[str, float]) -> None:
    print(f"{number} {subject:7}", {name: round(value, 4) for name, value in figures.items()}, flush=True)
    results.add(subject, number, {f"{name}_{tokens}": value for name, value in figures.items()})


def shown(results: Results, tokens: int) -> str:
    """Medians and ranges, and ratios by rounds."""
    columns = [f"{step}_{what}" for step in STEPS for what in ("s", "engine_cpu_s", "server_cpu_s")]
    lines = ["| | " + " | ".join(each.replace("_", " ") for each in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for subject, describes in results.subjects.items():
        spreads = [results.spread(f"{name}_{tokens}", subject) for name in columns]
        cells = [f"{each.median:.2f} ({each.least:.2f} to {each.most:.2f})" if each else "" for each in spreads]
        lines.append(f"| {describes} | {' | '.join(cells)} |")
    pairs = [(figure, each, "none") for figure in ("cold_s", "cold_engine_cpu_s") for each in results.subjects]
    pairs += [
        (f"{step}_{what}", *two)
        for step in STEPS[1:]
        for what in ("s", "engine_cpu_s")
        for two in (("linker", "stock"), ("stock", "public"))
    ]
    for figure, one, other in pairs:
        if one != other and (ratio := results.ratios(f"{figure}_{tokens}", one, other)):
            lines.append(f"{figure}: {one} / {other} = {ratio.median:.3f} ({ratio.least:.3f} to {ratio.most:.3f})")
    if loads := results.samples.get(f"load_s_{tokens}", {}).get("linker"):
        alone: dict[str, Any] = {
            name: results.samples[f"{name}_{tokens}"]["linker"].values() for name in ("layer_share", "beyond_mib")
        }
        lines.append(
            f"linker alone: a load takes {median(loads.values()):.3f} s; the first of 16 layers is complete after "
            f"{median(alone['layer_share']):.2f} of it; {max(alone['beyond_mib']):.1f} MiB beyond the engine"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(SUBJECTS), help="names of subjects, with commas")
    args = parser.parse_args()
    subjects = [name for name in SUBJECTS if name in args.only.split(",")]
    began, started = time.monotonic(), datetime.datetime.now(datetime.UTC)
    results = Results(
        what="sglang",
        started_at=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=machine.description() | {"model": MODEL},
        limits=machine.limits(),
        subjects={name: SUBJECTS[name] for name in subjects},
    )
    if "linker" in subjects:
        run_loads(args.tokens, args.rounds, results)
    try:
        run_engines(subjects, args.tokens, args.rounds, results)
    except (ChildError, RuntimeError, TimeoutError) as error:
        results.failures.append(str(error))
        print(f"FAILED {error}", flush=True)
    results.seconds = round(time.monotonic() - began)
    print(shown(results, args.tokens))
    print(f"kept in {results.save()}", flush=True)


if __name__ == "__main__":
    main()
