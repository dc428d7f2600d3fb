"""One recipe under load, from the start of its server to its end."""

from __future__ import annotations

import datetime
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks import machine
from benchmarks.l2_soak.engine import Orders, Tally
from benchmarks.l2_soak.recipes import Sizes, options
from benchmarks.l2_soak.watch import Sample, Watcher, disk_bytes
from benchmarks.results import FOLDER
from demo.server_process import HOST, ServerProcess

PROMPT_CHUNKS: Final = 16
UNIVERSE: Final = 1.5
"""All prompts together, in capacities of L2: what is asked for seldom has been evicted by then."""
GRACE_SECONDS: Final = 180.0
"""For engines to end their last request, and for what is on its way then."""
KEPT_SAMPLES: Final = 240


class L2Soak(msgspec.Struct, kw_only=True):
    """A whole run.  `books` are the server's own at its end."""

    recipe: str
    adapter: str
    started_at: str
    seconds: float
    engines: int
    sizes: Sizes
    options: list[str]
    machine: dict[str, str]
    tally: Tally = msgspec.field(default_factory=Tally)
    taken: int = 0
    """Samples; `samples` are some of them, evenly chosen."""
    samples: list[Sample] = []
    highest: dict[str, int] = {}
    """Of all samples, in bytes."""
    within: bool = False
    """Were both tiers within their capacities in every sample?"""
    books: dict[str, Any] = {}
    complaints: list[str] = []

    def save(self, folder: Path = FOLDER) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.started_at.replace(':', '').replace('-', '')}-l2-soak-{self.recipe}.json"
        path.write_bytes(msgspec.json.encode(self) + b"\n")
        return path


def soak(
    recipe: str, adapter: str, seconds: float, engines: int, sizes: Sizes, folder: Path, requests_min: int = 0
) -> L2Soak:
    """The server and all engines have ended when it returns, each of them after `requests_min` requests at least.  What the
    adapter stored stays in `folder`."""
    done = L2Soak(
        recipe=recipe,
        adapter=adapter,
        started_at=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=seconds,
        engines=engines,
        sizes=sizes,
        options=options(recipe, adapter, sizes, Path("FOLDER")),
        machine=machine.description(),
    )
    base = folder / "l2"
    server = ServerProcess(options(recipe, adapter, sizes, base), folder / "server.log")
    with server:
        watcher = Watcher(server, base)
        watcher.start()
        try:
            tallies = _work(server, done, requests_min)
        finally:
            watcher.stop()
        done.tally = added_up(tallies)
        done.complaints = [*done.tally.complaints]
        if watcher.fault:
            done.complaints.append(f"the tiers could not be watched: {watcher.fault}")
        _judge(done, watcher.samples)
        status = _at_rest(server)
        done.books = books_of(status)
        done.complaints += left_behind(status, disk_bytes(base))
        if code := server.stop():
            done.complaints.append(f"the server ended with {code}")
    return done


def _work(server: ServerProcess, done: L2Soak, requests_min: int) -> list[Tally]:
    size = done.sizes.chunk_bytes
    prompts = int(UNIVERSE * done.sizes.l2_bytes / size / PROMPT_CHUNKS)
    endpoint = f"tcp://{HOST}:{server.port}"
    with ExitStack() as stack:
        children = []
        for number in range(done.engines):
            orders = Orders(endpoint, number, done.seconds, prompts, PROMPT_CHUNKS, size, requests_min)
            command = [sys.executable, "-m", "benchmarks.l2_soak.engine", msgspec.json.encode(orders).decode()]
            child = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
            stack.callback(child.kill)  # before it is waited for
            children.append(child)
        return [_answer(child, done.seconds + GRACE_SECONDS) for child in children]


def _answer(child: subprocess.Popen[bytes], seconds: float) -> Tally:
    try:
        said, cried = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return Tally(complaints=["an engine hangs"])
    if child.returncode:
        return Tally(complaints=[f"an engine ended with {child.returncode}: {cried.decode()[-500:]}"])
    return msgspec.json.decode(said, type=Tally)


def added_up(tallies: Sequence[Tally]) -> Tally:
    """Of all engines together."""
    total = Tally()
    for tally in tallies:
        for name in tally.__struct_fields__:
            setattr(total, name, getattr(total, name) + getattr(tally, name))
    return total


def _judge(done: L2Soak, samples: Sequence[Sample]) -> None:
    done.taken = len(samples)
    done.samples = list(samples[:: max(1, len(samples) // KEPT_SAMPLES)])
    done.within = bool(samples) and all(sample.within for sample in samples)
    if not done.within:
        done.complaints.append(f"over capacity: {next((s for s in samples if not s.within), 'nothing was measured')}")
    if sick := [sample for sample in samples if not (sample.healthy and sample.state_counts_add_up)]:
        done.complaints.append(f"unhealthy, or L1's books do not add up, after {sick[0].seconds:.1f} s")
    for name in ("l1_bytes", "l2_bytes", "backlog_bytes", "disk_bytes"):
        done.highest[name] = max((getattr(sample, name) or 0 for sample in samples), default=0)


def _at_rest(server: ServerProcess) -> dict[str, Any]:
    """The server's status once nothing is on its way any more, or the time for that is over."""
    end = time.monotonic() + GRACE_SECONDS
    while True:
        status = server.status()
        (l2,) = status["l2"]
        busy = status["store"]["backlog_bytes"] or l2["jobs_in_flight"] or l2["eviction"]["deleting"]
        if not busy or time.monotonic() > end:
            return status
        time.sleep(0.1)


def left_behind(status: Mapping[str, Any], on_disk: int) -> list[str]:
    """What should not be there without engines, and books that say something else than the disk."""
    l1, (l2,), store = status["l1"], status["l2"], status["store"]
    (account,) = store["adapters"].values()
    counts = {
        "leases": l1["leases"],
        "slots held": l1["held"],
        "slots in quarantine": l1["quarantined"],
        "lookups open": status["lookups_open"],
        "bytes on their way to L2": store["backlog_bytes"],
        "stores failed": account["failed"] - account["failed_by_outcome"].get("rejected", 0),
        "faults of the adapter": l2["faults"] + l2["timeouts"],
    }
    complaints = [f"{number} {what}" for what, number in counts.items() if number]
    usage, known = l2["usage"] or {}, l2["eviction"]
    if usage.get("used_bytes") != on_disk:
        complaints.append(f"the adapter says that it holds {usage}, and {on_disk} bytes are on the disk")
    if (usage.get("objects"), usage.get("used_bytes")) != (known["known_objects"], known["known_bytes"]):
        complaints.append(f"the adapter says that it holds {usage}, and its eviction policy knows {known}")
    return complaints


def books_of(status: Mapping[str, Any]) -> dict[str, Any]:
    """Of the whole status, what the verdict is about."""
    (l2,) = status["l2"]
    (account,) = status["store"]["adapters"].values()
    return {
        "chunks": status["chunks"],
        "l1_evicted": status["l1"]["evicted"],
        "l1_leases": status["l1"]["leases"],
        "l2_usage": l2["usage"],
        "l2_eviction": l2["eviction"],
        "l2_counters": l2["counters"],
        "store": account,
        "prefetch": status["prefetch"],
    }
