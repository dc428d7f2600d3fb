"""What metrics, logs and spans cost the server of real engines: its CPU for the same prompts with each, in turn.

    .venv/bin/python -m benchmarks.observability_engine [--rounds 6]

Three servers with a vLLM engine each run side by side, and only one of them works at a time: nothing listens to events,
all that is active by default does (metrics, log, slow requests, recent events), or spans of every request are pushed to a
collector as well.  CPU is that of the whole server process, until all events are worked off.
"""

from __future__ import annotations

import argparse
import datetime
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from benchmarks import machine
from benchmarks.cpu_clock import CpuMeter
from benchmarks.results import Results
from benchmarks.rows.site import Figures
from demo.engine_process import EngineProcess
from demo.prompts import random_prompt
from demo.server_process import ServerProcess

TOKENS: Final = 1600
"""Of a prompt: six chunks, and a part of one."""
NEW_PROMPTS: Final = 8
REPEATS: Final = 4
WORK_OFF_SECONDS: Final = 2.0
"""Until the last batch of events is delivered and the last spans are pushed."""
SHARED: Final = ("--l1-size-gb", "1")
CASES: Final = ("nothing", "default", "tracing")


@contextmanager
def collector() -> Iterator[str]:
    """The endpoint of one that takes everything and keeps nothing, on a thread of this process."""

    class Sink(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """It is not read."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def options(case: str, endpoint: str) -> list[str]:
    if case == "nothing":
        return [*SHARED, "--disable-observability"]
    if case == "default":
        return [*SHARED]
    return [*SHARED, "--enable-tracing", "--otlp-endpoint", endpoint]


def work(server: ServerProcess, engine: EngineProcess, seed: int) -> Figures:
    """New prompts, which are stored, and each of them again and again, which is looked up and retrieved."""
    prompts = [random_prompt(1000 * seed + number, TOKENS) for number in range(NEW_PROMPTS)]
    with CpuMeter(server.pid) as cpu:
        for _ in range(1 + REPEATS):
            engine.ask(prompts, max_tokens=1)
        time.sleep(WORK_OFF_SECONDS)
    return {"request_cpu_ms": cpu.seconds / (len(prompts) * (1 + REPEATS)) * 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    args = parser.parse_args()
    start_time, started = time.monotonic(), datetime.datetime.now(datetime.UTC)
    results = Results(
        what="observability-engine",
        started_at=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=machine.description(),
        limits=machine.limits(),
        subjects={case: " ".join(options(case, "ENDPOINT")) for case in CASES},
    )
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        endpoint = stack.enter_context(collector())
        sites = {}
        for case in CASES:
            server = stack.enter_context(ServerProcess(options(case, endpoint), Path(folder) / f"{case}-server.log"))
            engine = EngineProcess(Path(folder) / f"{case}-engine.log", port=server.port)
            sites[case] = server, stack.enter_context(engine)
            work(*sites[case], seed=0)
        for number in range(args.rounds):
            turn = number % len(CASES)  # the first one changes
            for case in (*CASES[turn:], *CASES[:turn]):
                results.add(case, number, work(*sites[case], seed=1 + number))
    results.seconds = round(time.monotonic() - start_time)
    for case in CASES:
        if spread := results.spread("request_cpu_ms", case):
            ratio = results.ratios("request_cpu_ms", case, "nothing")
            beside = f"   {ratio.median:5.3f} ({ratio.least:.3f} to {ratio.most:.3f}) times nothing" if ratio else ""
            print(f"{case:8} {spread.median:7.3f} ms ({spread.least:.3f} to {spread.most:.3f}){beside}")
    print(f"kept in {results.save()}")


if __name__ == "__main__":
    main()
