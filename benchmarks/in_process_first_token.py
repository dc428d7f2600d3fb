"""Time to the first token with the cache in the engine's process: ours, the public package's, and vLLM without one, in pairs.

    .venv/bin/python -m benchmarks.in_process_first_token [--tokens 8192] [--rounds 5] [--only none,ours,public]

One engine for each subject, all up at once, one at work at a time; they take turns, and each begins a round as often.  A prompt
is new (cold, a round each), asked again (L1), and asked when two others have pushed it out of L1 (disk).  `decode` is the time
of a token of an answer behind its first, over prompts that no cache has.  The public connector has the page connector of
`public_in_process.py`.  L1 and disk are engines of their own: the latter's L1 holds one prompt and a half.
"""

from __future__ import annotations

import argparse
import datetime
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks import machine
from benchmarks.first_token import ANSWER_SECONDS, CHUNK_TOKENS, KV_BYTES_PER_TOKEN, STORE_SECONDS, make_model
from benchmarks.results import Results
from demo.engine_process import ENGINE_PYTHON, IN_PROCESS_PYTHON, EngineProcess
from demo.l2_folder import L2Folder
from demo.prompts import random_prompt

SUBJECTS: Final = {
    "none": "vLLM alone",
    "ours": "lmcache.in_process",
    "layers": "lmcache.in_process, use_layerwise",
    "public": "LMCacheConnectorV1, with a page connector for host memory",
}
DRIVER: Final = Path(__file__).with_name("public_in_process.py")
ANSWER_TOKENS: Final = 65
SETTLE_SECONDS: Final = 3.0
"""For stores that go on behind an answer."""


class Engine:
    def __init__(self, subject: str, model: Path, tokens: int, l1_gb: float, disk: Path | None, folder: Path) -> None:
        self.subject, self.disk = subject, disk
        settings: dict[str, Any] = {"chunk_size": CHUNK_TOKENS, "max_local_cpu_size": l1_gb}
        if disk is not None:
            disk.mkdir()
            settings |= {"local_disk": f"{disk}/" if subject == "public" else str(disk), "max_local_disk_size": 8}
        if subject == "layers":
            settings["use_layerwise"] = True
        more: dict[str, Any] = {"python": IN_PROCESS_PYTHON, "connector": "in-process"}
        if subject == "public":
            more = {"python": ENGINE_PYTHON, "connector": "public", "driver": DRIVER}
        elif subject == "none":
            more = {"python": IN_PROCESS_PYTHON}
        variables = {f"LMCACHE_{key.upper()}": str(value) for key, value in settings.items()}
        name = f"{subject}-{'disk' if disk else 'l1'}"
        self.process = EngineProcess(
            folder / f"{name}.log",
            port=None,
            model=model,
            block_size=128,
            one_process=True,
            options=["--dtype", "bfloat16", "--max-model-len", str(tokens + 512)],
            kv_gib=max(1, -(-(tokens + 4096) * KV_BYTES_PER_TOKEN // 2**30)),
            environment={} if subject == "none" else variables,
            **more,
        )

    def first(self, prompt: Sequence[int], *, cached: bool) -> float:
        """Seconds to the first token.  Raises RuntimeError where the cache has not what it should."""
        (answer,) = self.process.ask([prompt], max_tokens=1, timeout_seconds=ANSWER_SECONDS)
        if cached != (answer.cached_tokens >= len(prompt) - CHUNK_TOKENS) or (not cached and answer.cached_tokens):
            raise RuntimeError(f"{self.subject}: {answer.cached_tokens} of {len(prompt)} tokens came from its cache")
        return answer.seconds_to_first_token

    def decode(self, prompt: Sequence[int]) -> float:
        """Seconds of a token behind the first."""
        began = time.perf_counter()
        (answer,) = self.process.ask([prompt], max_tokens=ANSWER_TOKENS, timeout_seconds=ANSWER_SECONDS)
        return (time.perf_counter() - began - answer.seconds_to_first_token) / (ANSWER_TOKENS - 1)

    def settle(self, objects: int) -> None:
        """Block until what it has stored is where it goes."""
        if self.disk is not None and self.subject != "public":
            L2Folder(self.disk).wait_for_objects(objects, STORE_SECONDS)
        time.sleep(SETTLE_SECONDS)


@contextmanager
def engines(
    subjects: Sequence[str], model: Path, tokens: int, l1_gb: float, folder: Path, *, disk: bool
) -> Iterator[list[Engine]]:
    with ExitStack() as stack:
        opened = []
        for subject in subjects:
            engine = Engine(subject, model, tokens, l1_gb, folder / f"{subject}-kv" if disk else None, folder)
            stack.callback(engine.process.kill)
            engine.process.start()
            for seed in (9_001, 9_002):  # a first touch of memory is the kernel's time
                engine.first(random_prompt(seed, min(tokens, 2048)), cached=False)
            opened.append(engine)
        yield opened


def turns(opened: Sequence[Engine], number: int) -> Sequence[Engine]:
    first = number % len(opened)
    return [*opened[first:], *opened[:first]]


class Measured:
    def __init__(self, results: Results, tokens: int) -> None:
        self._results, self._tokens = results, tokens

    def add(self, number: int, engine: Engine, figures: Mapping[str, float]) -> None:
        print(f"{number} {engine.subject:8}", {name: round(value, 4) for name, value in figures.items()}, flush=True)
        named = {f"{name}_s_{self._tokens}": value for name, value in figures.items()}
        self._results.add(engine.subject, number, named)


def run_memory(subjects: Sequence[str], model: Path, tokens: int, rounds: int, measured: Measured) -> None:
    l1_gb = 0.5 + rounds * 1.1 * tokens * KV_BYTES_PER_TOKEN / 2**30
    with (
        tempfile.TemporaryDirectory() as name,
        engines(subjects, model, tokens, l1_gb, Path(name), disk=False) as opened,
    ):
        for number in range(rounds):
            prompt = random_prompt(100 + number, tokens)
            for engine in turns(opened, number):
                measured.add(number, engine, {"cold": engine.first(prompt, cached=False)})
                engine.settle(0)
            for engine in turns(opened, number):
                if engine.subject != "none":
                    measured.add(number, engine, {"l1": engine.first(prompt, cached=True)})
        for number in range(rounds):
            for engine in turns(opened, number):
                measured.add(number, engine, {"decode": engine.decode(random_prompt(200 + number, 300))})


def run_disk(subjects: Sequence[str], model: Path, tokens: int, rounds: int, measured: Measured) -> None:
    size = tokens * KV_BYTES_PER_TOKEN / 2**30
    prompts = [random_prompt(300 + number, tokens) for number in range(3)]
    caches = [subject for subject in subjects if subject != "none"]
    with (
        tempfile.TemporaryDirectory() as name,
        engines(caches, model, tokens, 1.5 * size, Path(name), disk=True) as opened,
    ):
        for engine in opened:
            for number, prompt in enumerate(prompts):
                engine.first(prompt, cached=False)
                engine.settle((number + 1) * (tokens // CHUNK_TOKENS))
        for number in range(rounds):
            for engine in turns(opened, number):
                measured.add(number, engine, {"disk": engine.first(prompts[number % 3], cached=True)})
                time.sleep(1.0)


def shown(results: Results, tokens: int) -> str:
    """Medians and ranges, and each subject's ratio to the others by rounds."""
    lines = ["| | " + " | ".join(("cold, s", "L1, s", "disk, s", "decode, ms")) + " |", "|---|---|---|---|---|"]
    for subject, describes in results.subjects.items():
        cells = []
        for figure, factor in (("cold", 1.0), ("l1", 1.0), ("disk", 1.0), ("decode", 1000.0)):
            each = results.spread(f"{figure}_s_{tokens}", subject)
            cells.append(
                f"{each.median * factor:.3f} ({each.least * factor:.3f} to {each.most * factor:.3f})" if each else ""
            )
        lines.append(f"| {describes} | {' | '.join(cells)} |")
    pairs = [
        (figure, one, other)
        for figure, other in (("cold", "none"), ("decode", "none"), ("l1", "public"), ("disk", "public"))
        for one in results.subjects
        if one != other
    ]
    for figure, one, other in pairs:
        if ratio := results.ratios(f"{figure}_s_{tokens}", one, other):
            lines.append(f"{figure}: {one} / {other} = {ratio.median:.3f} ({ratio.least:.3f} to {ratio.most:.3f})")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(SUBJECTS), help="names of subjects, with commas")
    parser.add_argument("--skip-disk", action="store_true")
    parser.add_argument("--config", default="kv64k")
    args = parser.parse_args()
    subjects = [name for name in SUBJECTS if name in args.only.split(",")]
    began, started = time.monotonic(), datetime.datetime.now(datetime.UTC)
    results = Results(
        what="in-process",
        started_at=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=machine.description() | {"model": args.config},
        limits=machine.limits(),
        subjects={name: SUBJECTS[name] for name in subjects},
    )
    measured = Measured(results, args.tokens)
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(args.config, Path(folder))
        run_memory(subjects, model, args.tokens, args.rounds, measured)
        if not args.skip_disk:
            run_disk(subjects, model, args.tokens, args.rounds, measured)
    results.seconds = round(time.monotonic() - began)
    print(shown(results, args.tokens))
    print(f"kept in {results.save()}", flush=True)


if __name__ == "__main__":
    main()
