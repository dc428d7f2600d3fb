"""Time to the first token of real vLLM: cold, hit in L1, hit in L2, beside the public server and vLLM's own prefix cache.

    .venv/bin/python -m benchmarks.first_token [--tokens 2048 8192] [--rounds 5] [--only own,stock,...]
    .venv/bin/python -m benchmarks.first_token --draw benchmarks/results/...-first-token.json

One engine for each subject, all of them up at the same time; only one works at a time, and they take turns.  A prompt is
new to all the first time (cold), and then asked again in each round (L1).  L2 is a server that was killed and started
again over the files that it had written: what it brings back is dropped before the next round, by killing it again.  Times
are the engine's own, from the arrival of the request to its first token.  CPU is that of all of an engine's processes.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks import machine
from benchmarks.cpu_clock import CpuMeter, cpu_seconds
from benchmarks.results import Results, load
from benchmarks.transfer import PUBLIC_SERVER
from demo.child_process import ChildError
from demo.engine_process import ENGINE_PYTHON, EngineProcess, RequestError, engine_environment
from demo.l2_folder import L2Folder
from demo.prompts import random_prompt
from demo.server_process import ServerProcess

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODELS: Final = Path(__file__).parent / "models"
KV_BYTES_PER_TOKEN: Final = 64 << 10
CHUNK_TOKENS: Final = 256
STORE_SECONDS: Final = 300.0
ANSWER_SECONDS: Final = 1800.0
REGISTER_SECONDS: Final = 60.0
PICTURES: Final = Path(__file__).parents[1] / "docs" / "internals"


@dataclass(frozen=True)
class Subject:
    name: str
    describes: str
    server: str = ""
    """`ours` or `public`; empty for an engine alone."""
    server_options: tuple[str, ...] = ()
    engine: Mapping[str, Any] = field(default_factory=dict)
    has_l2: bool = False


SUBJECTS: Final = (
    Subject("none", "vLLM alone, without any cache"),
    Subject("prefix", "vLLM's own prefix cache", engine={"options": ["--prefix-caching"]}),
    Subject("own", "this server, lmcache-vllm", "ours", engine={"connector": "own"}, has_l2=True),
    Subject("stock", "this server, the stock connector, engine-driven", "ours", has_l2=True),
    Subject(
        "stock-driven",
        "this server, the stock connector, server-driven",
        "ours",
        engine={"extra": {"lmcache.mp.mp_transfer_mode": "lmcache_driven"}},
        has_l2=True,
    ),
    Subject(
        "public",
        "the public server by shared memory, the stock connector",
        "public",
        ("--shm-name", f"first-token-{os.getpid()}"),
    ),
    Subject("public-default", "the public server as it comes, the stock connector", "public"),
)


class Site:
    """One subject's server and engine, both up."""

    def __init__(
        self,
        subject: Subject,
        model: Path,
        tokens: int,
        l1_gb: float,
        folder: Path,
        stack: ExitStack,
        dtype: str = "bfloat16",
    ) -> None:
        self.subject = subject
        self.l2 = L2Folder(folder / subject.name)
        self.server: ServerProcess | None = None
        options = [*subject.server_options, "--l1-size-gb", str(l1_gb), "--chunk-size", str(CHUNK_TOKENS)]
        if subject.server == "ours":
            self.l2.path.mkdir()
            adapter = self.l2.adapter_option() if subject.has_l2 else []
            self.server = ServerProcess([*options, "--no-l1-use-lazy", *adapter], folder / f"{subject.name}-server.log")
        elif subject.server == "public":
            options += ["--no-l1-use-lazy", "--eviction-policy", "LRU", "--supported-transfer-mode", "auto"]
            log_path = folder / f"{subject.name}-server.log"
            self.server = ServerProcess(options, log_path, executable=PUBLIC_SERVER)
        if self.server:
            self.server.start()
            stack.callback(end_server, self.server)
        given = dict(subject.engine)
        more = ["--dtype", dtype, "--max-model-len", str(tokens + 512), *given.pop("options", ())]
        self.engine = EngineProcess(
            folder / f"{subject.name}-engine.log",
            port=self.server.port if self.server else None,
            model=model,
            block_size=128,
            options=more,
            kv_gib=max(1, -(-(tokens + 4096) * KV_BYTES_PER_TOKEN // 2**30)),
            **given,
        )
        stack.callback(self.engine.kill)

    def ask(self, prompt: Sequence[int]) -> tuple[float, int]:
        """(seconds to the first token, tokens that came from a cache)."""
        (answer,) = self.engine.ask([prompt], max_tokens=1, timeout_seconds=ANSWER_SECONDS)
        return answer.seconds_to_first_token, answer.cached_tokens

    def touch_all(self, tokens: int) -> None:
        """Write to as much of L1 and of the engine's mapping of it as the prompts will: a first touch is the kernel's time."""
        for seed in (9_001, 9_002):
            self.ask(random_prompt(seed, min(tokens, 2048)))
        self.wait_written()

    def wait_written(self) -> None:
        """Block until what has been stored is in L2."""
        if self.server and self.subject.has_l2:
            self.server.wait_written(STORE_SECONDS)

    def wait_stored(self) -> None:
        """Block until the server has what its engine is storing: an answer does not wait for that."""
        deadline = time.monotonic() + STORE_SECONDS
        while self.server and self.subject.server == "ours" and self.server.status()["l1"]["held"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.subject.name}: still stores after {STORE_SECONDS:.0f} s")
            time.sleep(0.02)

    def restart_server(self) -> None:
        """Everything is in L2 alone afterwards, and the engine has found the new server."""
        assert self.server is not None
        self.server.kill()
        self.server.start()
        probe = random_prompt(int(time.monotonic_ns() % 2**31), CHUNK_TOKENS + 1)
        self.engine.ask_until_cached(probe, timeout_seconds=REGISTER_SECONDS)


def end_server(server: ServerProcess) -> None:
    """In an orderly way, so that it takes its shared memory along."""
    if server.running:
        try:
            server.stop()
        except ChildError:
            server.kill()


def processes_cpu_seconds(pid: int) -> float:
    """Of a process and all that descend from it."""
    table = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = [tuple(map(int, line.split())) for line in table.splitlines()]
    family, grown = {pid}, True
    while grown:
        more = {child for child, parent in parents if parent in family} - family
        family |= more
        grown = bool(more)
    total = 0.0
    for member in family:
        try:
            total += cpu_seconds(member)
        except OSError:
            continue  # it has ended meanwhile
    return total


def measure_cold(site: Site, prompt: Sequence[int]) -> dict[str, float]:
    before = processes_cpu_seconds(site.engine.pid)
    figures = {}
    if site.server:
        with CpuMeter(site.server.pid) as server:
            seconds, cached = site.ask(prompt)
        figures["cold_server_cpu_s"] = server.seconds
    else:
        seconds, cached = site.ask(prompt)
    figures["cold_engine_cpu_s"] = processes_cpu_seconds(site.engine.pid) - before
    answered = time.monotonic()
    site.wait_stored()
    figures["stored_after_s"] = time.monotonic() - answered
    if cached:
        raise ChildError(f"{site.subject.name}: {cached} tokens of a new prompt came from a cache")
    return figures | {"cold_s": seconds}


def measure_hit(site: Site, prompt: Sequence[int], name: str) -> dict[str, float]:
    seconds, cached = site.ask(prompt)
    if site.subject.name != "prefix" and cached < len(prompt) - CHUNK_TOKENS:
        raise ChildError(f"{site.subject.name}: {cached} of {len(prompt)} tokens came from the cache ({name})")
    return {f"{name}_s": seconds}


def make_model(config: str, folder: Path) -> Path:
    out = folder / config
    script = Path(__file__).parents[1] / "demo" / "make_model.py"
    command = [str(ENGINE_PYTHON), str(script), str(MODELS / f"{config}.json"), str(out)]
    subprocess.run(command, env=engine_environment(1), check=True, capture_output=True)
    return out


def run_length(tokens: int, subjects: Sequence[Subject], rounds: int, config: str, results: Results) -> None:
    l1_gb = max(1.0, 2.5 * tokens * KV_BYTES_PER_TOKEN / 2**30)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        model = make_model(config, folder)
        sites = []
        for subject in subjects:
            site = Site(subject, model, tokens, l1_gb, folder, stack)
            site.engine.start()
            site.touch_all(tokens)
            sites.append(site)
        prompt = random_prompt(tokens, tokens)

        def each(number: int, measure: Callable[[Site], Mapping[str, float]], takes: Callable[[Site], bool]) -> None:
            turn = number % len(sites)
            for site in (*sites[turn:], *sites[:turn]):
                if takes(site):
                    figures = measure(site)
                    print(f"{tokens:6} {number} {site.subject.name:15}", figures, flush=True)
                    results.add(site.subject.name, number, {f"{key}_{tokens}": value for key, value in figures.items()})

        before = {site.subject.name: len(site.l2.objects()) for site in sites if site.subject.has_l2}
        each(0, lambda site: measure_cold(site, prompt), lambda site: True)
        for number in range(rounds):
            each(number, lambda site: measure_hit(site, prompt, "l1"), lambda site: site.subject.name != "none")
        for site in sites:
            if site.subject.has_l2:
                site.l2.wait_for_objects(before[site.subject.name] + tokens // CHUNK_TOKENS, STORE_SECONDS)
                site.wait_written()
        for number in range(min(rounds, 3)):
            for site in sites:
                if site.subject.has_l2:
                    site.restart_server()
            each(number, lambda site: measure_hit(site, prompt, "l2"), lambda site: site.subject.has_l2)


def shown(results: Results, tokens: int) -> str:
    """A table of one prompt length: medians, and the range over the rounds."""
    lines = ["| | cold, s | L1, s | L2, s | server CPU, cold, s | engine CPU, cold, s |", "|---|---|---|---|---|---|"]
    names = ("cold_s", "l1_s", "l2_s", "cold_server_cpu_s", "cold_engine_cpu_s")
    for subject, describes in results.subjects.items():
        spreads = [results.spread(f"{name}_{tokens}", subject) for name in names]
        cells = [
            ""
            if each is None
            else f"{each.median:.2f} ({each.least:.2f} to {each.most:.2f})"
            if each.least < each.most
            else f"{each.median:.2f}"
            for each in spreads
        ]
        lines.append(f"| {describes} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw the time to the first token.  Returns the files."""
    from benchmarks import plots  # matplotlib, which a measurement does not need

    return plots.save(partial(_bars, results), folder, "benchmarks-first-token")


def _bars(results: Results) -> Figure:
    """One group of bars for each prompt length and tier, on a logarithmic axis."""
    import matplotlib.pyplot as plt  # only for the picture

    figures = sorted(
        (figure for figure in results.samples if not figure.startswith("cold_server") and "_cpu_" not in figure),
        key=lambda figure: (int(figure.rpartition("_")[2]), figure),
    )
    picture, axes = plt.subplots(figsize=(8.0, 1.2 + 0.9 * len(figures)), layout="constrained")
    subjects = list(results.subjects)
    for row, figure in enumerate(figures):
        for place, subject in enumerate(subjects):
            if spread := results.spread(figure, subject):
                y = row + (place - (len(subjects) - 1) / 2) * 0.8 / len(subjects)
                bar = axes.barh(y, spread.median, 0.7 / len(subjects), color=f"C{place}")
                axes.plot([spread.least, spread.most], [y, y], color="#808080", linewidth=1)
                axes.annotate(
                    f"{spread.median:.2f}", (spread.most, y), (4, 0), "data", "offset points", va="center", fontsize=7
                )
                bar.set_label(results.subjects[subject])
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes.set_xscale("log")
    axes.margins(x=0.1)
    axes.set_yticks(range(len(figures)), [_case(figure) for figure in figures])
    axes.invert_yaxis()
    axes.set_xlabel("s; less is better, lines are the range over the rounds")
    axes.set_title("Time to the first token", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        unique.values(), unique.keys(), fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.18), frameon=False
    )
    return picture


def _case(figure: str) -> str:
    tier, _, tokens = figure.partition("_s_")
    return f"{int(tokens):,} tokens, {tier.upper() if tier != 'cold' else tier}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="names of subjects, with commas")
    parser.add_argument("--config", default="kv64k", help="kv64k-windows makes long prompts cheap to compute")
    parser.add_argument("--draw", type=Path, help="a kept run: print its tables and draw it, measure nothing")
    args = parser.parse_args()
    if args.draw:
        kept = load(args.draw)
        for tokens in sorted({int(figure.rpartition("_")[2]) for figure in kept.samples}):
            print(f"{tokens} tokens\n\n{shown(kept, tokens)}\n")
        draw(kept, PICTURES)
        return
    subjects = [each for each in SUBJECTS if not args.only or each.name in args.only.split(",")]
    start_time, started = time.monotonic(), datetime.datetime.now(datetime.UTC)
    results = Results(
        what="first-token",
        started_at=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=machine.description() | {"model": args.config},
        limits=machine.limits(),
        subjects={subject.name: subject.describes for subject in subjects},
    )
    for tokens in args.tokens:
        try:
            run_length(tokens, subjects, args.rounds, args.config, results)
        except (ChildError, RequestError, TimeoutError) as error:
            results.failures.append(f"{tokens} tokens: {error}")
            print(f"FAILED {error}", flush=True)
        results.seconds = round(time.monotonic() - start_time)
        print(f"kept in {results.save()}", flush=True)


if __name__ == "__main__":
    main()
