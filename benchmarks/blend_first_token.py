"""Time to the first token of a prompt of known documents in a new order: blended, beside the public server and vLLM alone.

    .venv/bin/python -m benchmarks.blend_first_token [--tokens 8192] [--rounds 5] [--only ours]

A prompt is an instruction, documents of 1,024 tokens and a question.  Each document was asked for once alone.  In each round
the documents have a new order and the question is new.  Our engine first answers prompts that have no match, with and without
blending.  Then it answers that prompt with each selector, then without blending (cold, which stores it), then once more (a
prefix hit in L1); the other engines answer it once.  Engines take turns; the times are the engines' own, from the arrival of
the request to its first token.  CPU is that of all of an engine's processes: on a busy machine the better figure.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import os
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks import machine
from benchmarks.first_token import (
    ANSWER_SECONDS,
    CHUNK_TOKENS,
    KV_BYTES_PER_TOKEN,
    Site,
    Subject,
    make_model,
    processes_cpu_seconds,
)
from benchmarks.results import Results
from demo.child_process import ChildError
from demo.engine_process import RequestError
from demo.prompts import random_prompt

DOCUMENT_TOKENS: Final = 1024
INSTRUCTION_TOKENS: Final = CHUNK_TOKENS
QUESTION_TOKENS: Final = 64
MISS_TOKENS: Final = 512
SELECTORS: Final = {"none": 0.0, "lego_link": 0.15, "cacheblend": 0.15}
"""Each with the share of tokens that it may recompute."""
BLENDS: Final = {"lmcache.blend": "requests"}
OURS: Final = Subject(
    "ours",
    "this server, lmcache-vllm",
    "ours",
    ("--engine-type", "blend"),
    engine={"connector": "own", "extra": BLENDS, "options": ["--worker-cls", "lmcache_vllm.BlendWorker"]},
)
SUBJECTS: Final = (
    OURS,
    Subject(
        "public",
        "the public server by shared memory, the stock connector",
        "public",
        ("--shm-name", f"blend-{os.getpid()}"),
    ),
    Subject("none", "vLLM alone, without any cache"),
)


def prompt_of(documents: Sequence[Sequence[int]], number: int) -> list[int]:
    """With this instruction and these documents in an order, and a question, of its own for each number."""
    order = random.Random(number).sample(range(len(documents)), len(documents))
    body = itertools.chain.from_iterable(documents[each] for each in order)
    question = random_prompt(50_000 + number, QUESTION_TOKENS)
    return [*random_prompt(1, INSTRUCTION_TOKENS), *body, *question]


def blended(site: Site, prompt: Sequence[int], selector: str) -> dict[str, float]:
    """Raises ChildError where the engine did not blend."""
    wanted = {"lmcache.blend": True, "lmcache.blend_selector": selector}
    wanted["lmcache.blend_recompute_ratios"] = [SELECTORS[selector]]
    before = processes_cpu_seconds(site.engine.pid)
    answer = site.engine.ask_with(prompt, wanted, max_tokens=1, timeout_seconds=ANSWER_SECONDS)
    cpu = processes_cpu_seconds(site.engine.pid) - before
    said: dict[str, Any] = (answer.kv_transfer_params or {}).get("lmcache.blend") or {}
    if not said.get("reused_tokens"):
        raise ChildError(f"{selector}: the prompt was not blended: {answer.kv_transfer_params}")
    computed = len(prompt) - answer.cached_tokens + said["recomputed_tokens"] + said["gap_tokens"]
    return {
        f"{selector}_s": answer.seconds_to_first_token,
        f"{selector}_cpu_s": cpu,
        f"{selector}_computed_tokens": computed,
    }


def not_blended(site: Site, prompt: Sequence[int], name: str) -> tuple[dict[str, float], int]:
    """Figures, and tokens that came from a cache."""
    before = processes_cpu_seconds(site.engine.pid)
    seconds, cached = site.ask(prompt)
    return {f"{name}_s": seconds, f"{name}_cpu_s": processes_cpu_seconds(site.engine.pid) - before}, cached


def ask_ours(site: Site, prompt: Sequence[int], selectors: Sequence[str]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for selector in selectors:
        figures |= blended(site, prompt, selector)
    cold, _ = not_blended(site, prompt, "cold")
    site.wait_stored()
    hit, cached = not_blended(site, prompt, "l1")
    figures |= cold | hit
    if cached < len(prompt) - CHUNK_TOKENS:
        raise ChildError(f"{cached} of {len(prompt)} tokens came from L1")
    return figures


def ask_without_match(site: Site, number: int) -> dict[str, float]:
    blends, plain = (random_prompt(70_000 + 2 * number + each, MISS_TOKENS) for each in range(2))
    answer = site.engine.ask_with(blends, {"lmcache.blend": True}, max_tokens=1)
    seconds, _ = site.ask(plain)
    return {"miss_blend_s": answer.seconds_to_first_token, "miss_plain_s": seconds}


def run(
    tokens: int, rounds: int, config: str, subjects: Sequence[Subject], selectors: Sequence[str], results: Results
) -> None:
    count = (tokens - INSTRUCTION_TOKENS) // DOCUMENT_TOKENS
    documents = [random_prompt(100 + each, DOCUMENT_TOKENS) for each in range(count)]
    l1_gb = max(1.0, (rounds + 3) * tokens * KV_BYTES_PER_TOKEN / 2**30)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        model = make_model(config, folder)
        sites = []
        for subject in subjects:
            site = Site(subject, model, tokens, l1_gb, folder, stack, dtype="float32")
            site.engine.start()
            site.touch_all(tokens)
            for document in [random_prompt(1, INSTRUCTION_TOKENS), *documents]:
                site.ask(document)
            site.wait_stored()
            sites.append(site)
        for number in range(rounds):
            prompt = prompt_of(documents, number)
            turn = number % len(sites)
            for site in (*sites[turn:], *sites[:turn]):
                if site.subject is OURS:
                    figures = ask_without_match(site, number) | ask_ours(site, prompt, selectors)
                else:
                    figures, _ = not_blended(site, prompt, "cold")
                print(number, site.subject.name, figures, flush=True)
                results.add(site.subject.name, number, figures)


def shown(results: Results) -> str:
    """A table of medians, with the range over the rounds, beside what our engine takes without a cache."""
    lines = ["| | s | of cold | engine CPU, s | of cold | tokens computed |", "|---|---|---|---|---|---|"]
    rows = [(OURS.name, f"{each}_s", f"blended, {each}") for each in SELECTORS]
    rows += [(OURS.name, "l1_s", "prefix hit in L1")]
    rows += [(name, "cold_s", f"cold, {describes}") for name, describes in results.subjects.items()]
    cold, cold_cpu = results.spread("cold_s", OURS.name), results.spread("cold_cpu_s", OURS.name)
    for subject, figure, describes in rows:
        seconds, cpu = results.spread(figure, subject), results.spread(figure.removesuffix("_s") + "_cpu_s", subject)
        if seconds is None or cpu is None or cold is None or cold_cpu is None:
            continue
        computed = results.spread(figure.removesuffix("_s") + "_computed_tokens", subject)
        tokens = f"{computed.median:.0f}" if computed else ""
        cells = [
            f"{each.median:.3f} ({each.least:.3f} to {each.most:.3f}) | {each.median / whole.median:.2f}"
            for each, whole in ((seconds, cold), (cpu, cold_cpu))
        ]
        lines.append(f"| {describes} | {' | '.join(cells)} | {tokens} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--config", default="kv64k-float32")
    parser.add_argument("--only", default="", help="names of subjects, with commas")
    parser.add_argument("--selectors", default=",".join(SELECTORS), help="those that are tried, with commas")
    args = parser.parse_args()
    subjects = [each for each in SUBJECTS if not args.only or each.name in args.only.split(",")]
    start_time, started = time.monotonic(), datetime.datetime.now(datetime.UTC)
    results = Results(
        what="blend-first-token",
        started_at=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=machine.description() | {"model": args.config, "tokens": str(args.tokens)},
        limits=machine.limits(),
        subjects={subject.name: subject.describes for subject in subjects},
    )
    try:
        run(args.tokens, args.rounds, args.config, subjects, args.selectors.split(","), results)
    except (ChildError, RequestError, TimeoutError) as error:
        results.failures.append(str(error))
        print(f"FAILED {error}", flush=True)
    results.seconds = round(time.monotonic() - start_time)
    print(shown(results))
    print(f"kept in {results.save()}", flush=True)


if __name__ == "__main__":
    main()
