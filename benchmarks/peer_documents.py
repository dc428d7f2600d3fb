"""Eight documents that one engine has computed, asked of another engine on another server: read from the peer.

    .venv/bin/python -m benchmarks.peer_documents [--rounds 3] [--only ours,public] [--public-path FOLDER]

Two real vLLM engines, each with a server of its own, and a coordinator.  A round has two sets of documents.  The second
engine computes one (`cold`) and is asked for it again (`warm`, from its own L1); the first engine computes the other one,
and the second engine is asked for that (`peer`).  The time to the first token is the engine's own; the time of a round is
that of all documents, one after the other.  `public` is the public server's own peer-to-peer tier with the stock
connector; it needs nixl, from a folder that `pip install --target FOLDER --no-deps nixl nixl-cu12` has filled.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks import machine
from benchmarks.first_token import make_model
from benchmarks.results import Results
from benchmarks.transfer import PUBLIC_SERVER
from demo.child_process import ChildError
from demo.engine_process import EngineProcess, RequestError
from demo.environment import quiet_environment
from demo.prompts import random_prompt
from demo.server_process import LMCACHE, ServerProcess
from lmcache_devkit import free_port

DOCUMENTS: Final = 8
TOKENS: Final = 2048
CHUNK_TOKENS: Final = 256
L1_GB: Final = 3.0
ANSWER_SECONDS: Final = 600.0
SETTLE_SECONDS: Final = 3.0
"""After a set was computed: its stores end, and the coordinator and the peer learn of them."""
DESCRIBES: Final = {
    "ours": "this server and its connector, peers by `auto`",
    "public": "the public server and the stock connector, peers by NIXL",
}


class Side:
    """Two servers with an engine each, and their coordinator, all up."""

    def __init__(self, name: str, model: Path, folder: Path, public_path: str, stack: ExitStack) -> None:
        self.name = name
        ours = name == "ours"
        command = LMCACHE if ours else PUBLIC_SERVER
        environment = {} if ours else {"PYTHONPATH": public_path, "UCX_MODULES": "^ib", "UCX_NET_DEVICES": "lo"}
        port = free_port()
        log = stack.enter_context((folder / f"{name}-coordinator.log").open("wb"))
        coordinator = subprocess.Popen(
            [str(command), "coordinator", "--host", "127.0.0.1", "--port", str(port)],
            stdout=log,
            stderr=log,
            env=quiet_environment() | environment,
        )
        stack.callback(coordinator.wait)
        stack.callback(coordinator.kill)
        time.sleep(SETTLE_SECONDS)
        self.engines: list[EngineProcess] = []
        for place in ("one", "two"):
            options = ["--l1-size-gb", str(L1_GB), "--no-l1-use-lazy", "--chunk-size", str(CHUNK_TOKENS)]
            options += ["--eviction-policy", "LRU", "--coordinator-url", f"http://127.0.0.1:{port}"]
            scheme = "tcp://" if ours else ""
            options += ["--p2p-advertise-url", f"{scheme}127.0.0.1:{free_port()}"]
            if ours:
                options += ["--coordinator-heartbeat-interval", "1", "--instance-id", f"{name}-{place}"]
            else:
                options += ["--supported-transfer-mode", "auto", "--coordinator-advertise-ip", "127.0.0.1"]
            server = ServerProcess(
                options, folder / f"{name}-{place}-server.log", executable=command, environment=environment
            )
            server.start()
            stack.callback(server.kill)
            engine = EngineProcess(
                folder / f"{name}-{place}-engine.log",
                port=server.port,
                model=model,
                connector="own" if ours else "stock",
                block_size=128,
                options=["--dtype", "bfloat16", "--max-model-len", str(TOKENS + 512)],
                one_process=True,
            )
            engine.start()
            stack.callback(engine.kill)
            self.engines.append(engine)
        time.sleep(3 * SETTLE_SECONDS)  # the servers know of each other: the public one looks every 5 s

    def round(self, number: int) -> Mapping[str, float]:
        """Raises ChildError where a document did not come from where it should."""
        first, second = self.engines
        cold = self._ask(second, 2 * number, cached=False)
        warm = self._ask(second, 2 * number, cached=True)
        self._ask(first, 2 * number + 1, cached=False)
        peer = self._ask(second, 2 * number + 1, cached=True)
        figures: dict[str, float] = {}
        for name, (firsts, seconds) in {"cold": cold, "warm": warm, "peer": peer}.items():
            figures |= {f"{name}_first_s": statistics.median(firsts), f"{name}_round_s": seconds}
        return figures

    def _ask(self, engine: EngineProcess, number: int, *, cached: bool) -> tuple[list[float], float]:
        """(seconds to the first token of each document, seconds for all)."""
        documents = [random_prompt(1000 * number + place, TOKENS) for place in range(DOCUMENTS)]
        start = time.monotonic()
        answers = engine.ask(documents, max_tokens=1, timeout_seconds=ANSWER_SECONDS)
        seconds = time.monotonic() - start
        found = [answer.cached_tokens for answer in answers]
        if min(found) < TOKENS - CHUNK_TOKENS if cached else max(found) > 0:
            raise ChildError(f"{self.name}: of {TOKENS} tokens {found} came from the cache")
        time.sleep(SETTLE_SECONDS)
        return [answer.seconds_to_first_token for answer in answers], seconds


def shown(results: Results, subjects: Sequence[str]) -> str:
    head = "| | cold, s | own L1, s | peer, s | cold / peer | peer / own L1 |"
    lines = [head, "|---|---|---|---|---|---|"]
    for subject in subjects:
        for what, name in (("first token", "first"), ("round", "round")):
            spreads = [results.spread(f"{way}_{name}_s", subject) for way in ("cold", "warm", "peer")]
            if None in spreads:
                continue
            cold, warm, peer = (spread.median for spread in spreads if spread)
            cells = f"{cold:.3f} | {warm:.3f} | {peer:.3f} | {cold / peer:.2f} | {peer / warm:.2f}"
            lines.append(f"| {results.subjects[subject]}, {what} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(DESCRIBES))
    parser.add_argument("--public-path", default="", metavar="FOLDER", help="where the public server finds nixl")
    parser.add_argument("--config", default="kv64k")
    args = parser.parse_args()
    subjects = args.only.split(",")
    start, started = time.monotonic(), datetime.datetime.now(datetime.UTC)
    results = Results(
        what="peer-documents",
        started_at=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=machine.description() | {"model": args.config},
        limits=machine.limits(),
        subjects={subject: DESCRIBES[subject] for subject in subjects},
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(args.config, folder)
        for subject in subjects:
            try:
                with ExitStack() as stack:
                    side = Side(subject, model, folder, args.public_path, stack)
                    for number in range(args.rounds):
                        figures = side.round(number)
                        results.add(subject, number, figures)
                        print(subject, number, {key: round(value, 4) for key, value in figures.items()}, flush=True)
            except (ChildError, RequestError) as error:
                results.failures.append(f"{subject}: {error}")
                print(f"FAILED {subject}: {error}", file=sys.stderr, flush=True)
    results.seconds = round(time.monotonic() - start)
    print(shown(results, subjects))
    print(f"kept in {results.save()}")


if __name__ == "__main__":
    main()
