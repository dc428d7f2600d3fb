"""`make demo`: two real vLLM engines, one cache server, one crash.

Shows that prompts which were computed once are not computed again: not by the same engine, not by another one, and not
after the server was killed.  Exits with 1 when an answer differs from the one without a cache, or when a hit is missing.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.answer import Answer
from demo.cache_rule import cached_tokens, whole_chunks
from demo.child_process import ChildError
from demo.engine_process import EngineProcess, RequestError
from demo.l2_folder import L2Folder
from demo.progress import Progress
from demo.prompts import random_prompt
from demo.server_process import ServerProcess

CHUNK_TOKENS = 256
PROMPT_TOKENS = 6_000
PROMPTS = [random_prompt(seed, PROMPT_TOKENS) for seed in range(3)]
PROBE = random_prompt(99, 300)
HEARTBEAT_SECONDS = 4.0
EXPECTED_HIT = cached_tokens(PROMPT_TOKENS, CHUNK_TOKENS)


@dataclass(frozen=True, slots=True)
class Phase:
    """One row of the table."""

    name: str
    answers: Sequence[Answer]
    expected_cached: int

    @property
    def seconds(self) -> float:
        return statistics.median(answer.seconds_to_first_token for answer in self.answers)

    @property
    def cached(self) -> int:
        return min(answer.cached_tokens for answer in self.answers)

    def same_as(self, reference: Sequence[Answer]) -> bool:
        return all(mine.says_the_same_as(other) for mine, other in zip(self.answers, reference, strict=True))

    def as_expected(self) -> bool:
        return all(answer.cached_tokens == self.expected_cached for answer in self.answers)


class Demo:
    """Runs the phases in order.  Everything that it starts is gone when its `stack` is closed."""

    def __init__(self, folder: Path, stack: ExitStack, progress: Progress) -> None:
        self._progress = progress
        self._l2 = L2Folder(folder / "l2")
        self._l2.path.mkdir()
        options = ["--l1-size-gb", "1", "--chunk-size", str(CHUNK_TOKENS), *self._l2.adapter_option()]
        self._server = ServerProcess(options, folder / "server.log")
        stack.callback(self._server.kill)
        heartbeat = {"lmcache.mp.heartbeat_interval": HEARTBEAT_SECONDS}
        cached: dict[str, Any] = {"port": self._server.port, "extra": heartbeat, "one_process": True}
        self._plain = EngineProcess(folder / "engine-plain.log", port=None, one_process=True)
        self._first = EngineProcess(folder / "engine-a.log", **cached)
        self._second = EngineProcess(folder / "engine-b.log", **cached)
        for engine in (self._plain, self._first, self._second):
            stack.callback(engine.kill)

    def run(self) -> list[Phase]:
        """The phases, the one without a cache first."""
        self._start()
        phases = [
            self._ask(self._plain, "no cache", 0),
            self._ask(self._first, "engine A, cold: computed and stored", 0),
            self._ask(self._first, "engine A again: from shared memory (L1)", EXPECTED_HIT),
            self._ask(self._second, "engine B, another process: from the same L1", EXPECTED_HIT),
        ]
        self._crash()
        phases.append(self._ask(self._first, "engine A after a crash of the server: from disk (L2)", EXPECTED_HIT))
        return phases

    def stop(self) -> None:
        """End everything in an orderly way."""
        with self._progress.waiting("stopping the engines and the server"):
            for engine in (self._plain, self._first, self._second):
                engine.stop()
            self._server.stop()

    def _start(self) -> None:
        with self._progress.waiting("starting the server: 1 GB of shared memory (L1), a temporary folder (L2)"):
            self._server.start()
        engines = (self._plain, self._first, self._second)
        with self._progress.waiting(
            "starting three vLLM engines: one without a cache, A and B with it (half a minute or so)"
        ):
            for engine in engines:
                engine.launch()
            for engine in engines:
                engine.wait_ready(timeout_seconds=600)

    def _ask(self, engine: EngineProcess, name: str, expected_cached: int) -> Phase:
        with self._progress.waiting(f"{len(PROMPTS)} prompts of {PROMPT_TOKENS:,} tokens: {name}"):
            return Phase(name, engine.ask(PROMPTS), expected_cached)

    def _crash(self) -> None:
        objects = sum(whole_chunks(len(prompt), CHUNK_TOKENS) for prompt in PROMPTS)
        with self._progress.waiting(f"waiting until all {objects} chunks are on disk"):
            self._l2.wait_for_objects(objects, timeout_seconds=60)
        with self._progress.waiting("killing the server (SIGKILL: its memory is gone), and starting it again"):
            self._server.kill()
            self._server.start()
        with self._progress.waiting(
            f"engine A lives on; it finds the new server by its heartbeat ({HEARTBEAT_SECONDS:.0f} s)"
        ):
            self._first.ask_until_cached(PROBE, timeout_seconds=60)


def print_table(phases: Sequence[Phase]) -> None:
    reference = phases[0].answers
    width = max(len(phase.name) for phase in phases)
    print(f"\n{'':{width}}  first token after  cached tokens   same answer as without a cache")
    for phase in phases:
        same = "-" if phase is phases[0] else "yes" if phase.same_as(reference) else "NO"
        cached = f"{phase.cached:,} of {PROMPT_TOKENS:,}" + ("" if phase.as_expected() else "  NOT AS EXPECTED")
        print(f"{phase.name:{width}}  {phase.seconds:15.2f} s  {cached:>14}   {same}")


def verdict(phases: Sequence[Phase]) -> bool:
    """Print in one or two sentences what was shown; True when it is what should have been."""
    plain, *cached = phases
    if not all(phase.same_as(plain.answers) for phase in cached):
        print("\nFAILED: with the cache the model gave another answer than without it.")
        return False
    if not all(phase.as_expected() for phase in phases):
        print(f"\nFAILED: a hit is missing; {EXPECTED_HIT:,} tokens of each prompt should have come from the cache.")
        return False
    factor = plain.seconds / max(phase.seconds for phase in cached if phase.expected_cached)
    print(
        "\nShown: a prompt that one engine has computed is not computed again: not by it, not by another engine, and not"
        "\nafter a crash of the server.  The answers are the same, and the first token comes at least "
        f"{factor:.0f} times sooner."
    )
    return True


def main() -> int:
    progress = Progress()
    folder = Path(tempfile.mkdtemp(prefix="lmcache-demo-"))
    try:
        with ExitStack() as stack:
            demo = Demo(folder, stack, progress)
            phases = demo.run()
            demo.stop()
    except (ChildError, RequestError, TimeoutError) as error:
        print(f"\nFAILED: {error}\nLogs: {folder}", file=sys.stderr)
        return 1
    print_table(phases)
    if not verdict(phases):
        print(f"Logs: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
