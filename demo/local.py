"""A model of transformers with its prefix cache, no server: `python -m demo.local`.

One prompt is computed, answered again from memory, by another process from files, and once more after that one was killed.
The answers have to be the same tokens, and each but the first has to begin at least `FASTER` times sooner."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from demo.environment import quiet_environment
from demo.prompts import random_prompt

MODEL: Final = Path(__file__).parent / ".model"
PROMPT_TOKENS: Final = 6_000
ANSWER_TOKENS: Final = 8
FASTER: Final = 5.0
SECONDS_MAX: Final = 300.0
KILLED: Final = "killed"


class Reply(NamedTuple):
    """One answer to the prompt."""

    name: str
    cached_tokens: int
    first_token_seconds: float
    tokens: list[int]


def main() -> int:
    """0 where every answer is right and soon enough."""
    with tempfile.TemporaryDirectory(prefix="lmcache-demo-") as folder:
        replies = [
            *worker(folder, "cold", "warm, from memory"),
            *worker(folder, "another process, from files", KILLED),
            *worker(folder, "after SIGKILL, from files"),
        ]
    cold = replies[0]
    for reply in replies:
        sooner = cold.first_token_seconds / reply.first_token_seconds
        about = f"{reply.cached_tokens:6} tokens cached, first token {reply.first_token_seconds:6.3f} s"
        print(f"{reply.name:30}{about} ({sooner:.1f}x)")
    same = all(reply.tokens == cold.tokens for reply in replies)
    slow = [each.name for each in replies[1:] if each.first_token_seconds * FASTER > cold.first_token_seconds]
    print("the answers are the same" if same else "THE ANSWERS DIFFER")
    if slow:
        print(f"not {FASTER:g} times sooner: {', '.join(slow)}")
    return int(not same or bool(slow))


def worker(folder: str, *names: str) -> list[Reply]:
    """The replies of a process of its own; where the last name is `KILLED`, it is killed once it has answered."""
    asked = [name for name in names if name != KILLED]
    environment = quiet_environment() | {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1"}
    command = [sys.executable, "-m", "demo.local", folder, *asked, *([KILLED] if KILLED in names else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        replies = [Reply(*json.loads(process.stdout.readline() or "null")) for _ in asked]
        if KILLED in names:
            process.kill()
        code = process.wait(SECONDS_MAX)
    if code != (-signal.SIGKILL if KILLED in names else 0):
        raise RuntimeError(f"the process that was to answer ended with {code}")
    return replies


def answer(folder: str, names: Sequence[str]) -> None:
    """In a worker: write a reply for each name, as a line of JSON."""
    import torch
    from transformers import AutoModelForCausalLM

    from lmcache_transformers import PrefixCache

    torch.set_num_threads(1)
    model: Any = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    ways: dict[str, Any] = {"do_sample": False, "pad_token_id": 0}
    ids = torch.tensor([random_prompt(1, PROMPT_TOKENS)])
    files = {"type": "fs", "base_path": folder}
    with PrefixCache(model, {"l1_size_gb": 0.25, "plugins": ["fs"], "l2_adapter": [files]}) as cache:
        model.generate(ids[:, :64], max_new_tokens=1, **ways)  # kernels are chosen now
        for name in names:
            if name == KILLED:
                time.sleep(SECONDS_MAX)
            started = time.perf_counter()
            past = cache.load(ids)
            cached = past.get_seq_length()
            model.generate(ids, past_key_values=past, max_new_tokens=1, **ways)
            first = time.perf_counter() - started
            cache.save(ids, past)
            tokens = cache.generate(ids, max_new_tokens=ANSWER_TOKENS, **ways)
            reply = Reply(name, cached, first, tokens[0, PROMPT_TOKENS:].tolist())
            print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        answer(sys.argv[1], sys.argv[2:])
    else:
        raise SystemExit(main())
