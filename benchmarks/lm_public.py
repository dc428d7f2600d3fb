"""`lm` and `lmcache store-server` in pairs beside the public package's client and store of the lm:// protocol, over loopback.

    .venv/bin/python -m benchmarks.lm_public --rounds 10

A pair is both, one right behind the other, in turns who comes first: the same number of objects of 4 MiB, as many at a time,
from warm memory into memory.  The adapter compares header and digest of what it loads while its clock runs, as a server does
it; the public client compares nothing.  Beside them, what memcpy does on this machine: on loopback each byte is copied twice.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks import machine
from benchmarks.bare_lm import START_SECONDS, lm_store
from benchmarks.l2_cell import MIB, Speed
from benchmarks.l2_lane import Runner, opened
from benchmarks.peer import BenchmarkError
from benchmarks.remote_sides import ServedLane
from demo.child_process import ChildProcess
from demo.engine_process import ENGINE_PYTHON
from demo.environment import quiet_environment
from demo.server_process import HOST
from lmcache_core.app.commands.server import take_turns
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_devkit import free_port
from lmcache_tools.bench.interruption import Interruption
from lmcache_tools.bench.objects import BenchObjects

OBJECT_BYTES: Final = 4 * MIB
VERBS: Final = ("store", "load")
ROOT: Final = Path(__file__).parents[1]


class Public:
    """The public client, in a process of its own, before the public store."""

    def __init__(self, client: ChildProcess, count: int) -> None:
        self._client: Final = client
        self._gigabytes: Final = count * OBJECT_BYTES / 1e9

    def run(self, verb: str, number: int) -> Speed:
        """Raises BenchmarkError."""
        self._client.stdin.write(f"{verb} {number}\n")
        self._client.stdin.flush()
        said: dict[str, Any] = json.loads(self._client.stdout.readline() or "{}")
        if not said or said["wrong"]:
            raise BenchmarkError(f"the public client: {said or 'it ended'}")
        return Speed(self._gigabytes / said["seconds"], said["cpu"] / self._gigabytes)


@contextmanager
def public(folder: Path, count: int, depth: int) -> Iterator[Public]:
    port = free_port()
    environment = {**quiet_environment(), "LMCACHE_LOG_LEVEL": "ERROR"}
    store = ChildProcess(
        "public store",
        [str(ENGINE_PYTHON), "-m", "lmcache.v1.server", HOST, str(port)],
        folder / "store.log",
        environment,
    )
    words = [str(ENGINE_PYTHON), "-m", "benchmarks.lm_public_client", str(port), str(count), str(depth)]
    client = ChildProcess("public client", words, folder / "client.log", {**environment, "PYTHONPATH": str(ROOT)})
    with ExitStack() as undo:
        undo.callback(store.kill)
        store.start()
        _wait_listening(port)
        undo.callback(client.kill)
        client.start(piped=True)
        while (line := client.stdout.readline()) and line != "ready\n":
            pass  # what its imports say
        if not line:
            raise BenchmarkError(f"the public client did not start: {(folder / 'client.log').read_text()[-1000:]}")
        yield Public(client, count)


def measured(rounds: int, count: int, depth: int, folder: Path) -> dict[tuple[str, str], list[Speed]]:
    """By side and verb, pair by pair.  Raises BenchmarkError."""
    found: dict[tuple[str, str], list[Speed]] = {}
    with Interruption() as interruption, ExitStack() as undo:
        port = undo.enter_context(lm_store(folder, 3 * count * OBJECT_BYTES))
        settings = {"type": "lm", "host": HOST, "port": port, "num_connections": depth}
        lane, memory = undo.enter_context(opened(settings, load_plugins((), ()), count * OBJECT_BYTES))
        objects = BenchObjects(memory.arena.region, OBJECT_BYTES, OBJECT_BYTES, count)
        runner = Runner(ServedLane(lane), depth, interruption)
        theirs = undo.enter_context(public(folder, count, depth))
        for number in range(-1, rounds):  # the first warms up
            objects.renew()
            for verb in VERBS:
                for side in ("lm", "public") if number % 2 else ("public", "lm"):
                    if side == "lm":
                        steps = objects.stores() if verb == "store" else objects.loads()
                        speed = runner.run(steps)
                        if wrong := list(objects.wrong(steps)):
                            raise BenchmarkError(f"{len(wrong)} objects came back wrong, the first: {wrong[0]}")
                    else:
                        speed = theirs.run(verb, number + 1)
                    if number >= 0:
                        found.setdefault((side, verb), []).append(speed)
    return found


def memcpy_speed() -> float:
    """GB/s of one thread, between buffers that no cache holds."""
    source, target = bytearray(256 * MIB), memoryview(bytearray(256 * MIB))
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        target[:] = source
        seconds.append(time.perf_counter() - began)
    return len(source) / 1e9 / statistics.median(seconds)


def page(found: dict[tuple[str, str], list[Speed]], count: int, depth: int) -> str:
    about = machine.description()
    on = f"commit {about.get('commit')}, {about.get('cores')} cores of {about.get('cpu')}, load {about.get('load')}"
    lines = [
        f"{on}; {count} objects of 4 MiB, {depth} at a time; memcpy {memcpy_speed():.1f} GB/s",
        "| | lm, GB/s | public, GB/s | ratio of the pairs | lm's CPU, s/GB | public's CPU, s/GB |",
        "|---|---|---|---|---|---|",
    ]
    for verb in VERBS:
        own, theirs = found["lm", verb], found["public", verb]
        ratios = [one.gb_per_second / other.gb_per_second for one, other in zip(own, theirs, strict=True)]
        speeds = (_spread([each.gb_per_second for each in side]) for side in (own, theirs))
        cpus = (f"{statistics.median(each.cpu_seconds_per_gb or 0 for each in side):.2f}" for side in (own, theirs))
        lines.append(f"| {verb} | {' | '.join(speeds)} | **{_spread(ratios)}** | {' | '.join(cpus)} |")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _wait_listening(port: int) -> None:
    import socket

    end = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection((HOST, port), 1).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise BenchmarkError("the public store did not start") from None
            time.sleep(0.2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lm_public", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--objects", type=int, default=64)
    parser.add_argument("--depth", type=int, default=16)
    args = parser.parse_args()
    take_turns()  # as in a server
    with tempfile.TemporaryDirectory(prefix="lm-public-") as folder:
        found = measured(args.rounds, args.objects, args.depth, Path(folder))
    print(page(found, args.objects, args.depth))
    return 0


if __name__ == "__main__":
    sys.exit(main())
