"""An engine with a cache of its own, as a process: `python -m tests.peers.in_process_engine '{"role": ...}'`.

It reads commands as lines of JSON, `[name, argument]`, and answers each with a line."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

ROOT: Final = Path(__file__).parents[2]
BLOCKS: Final = 5
"""Of a prompt: two whole chunks, and half a one."""


class InProcessEngine:
    """`with InProcessEngine(configuration) as engine:`"""

    def __init__(self, configuration: Mapping[str, Any], rank: int = 0, ranks: int = 1) -> None:
        self._given = [json.dumps(configuration), str(rank), str(ranks)]

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.peers.in_process_engine", *self._given]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, bufsize=1
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.process:
            if self.process.stdin and self.process.poll() is None:
                self.process.stdin.close()
                if error is not None:
                    self.process.kill()

    def say(self, *commands: tuple[str, Any]) -> None:
        """Their answers are not read."""
        assert self.process.stdin
        self.process.stdin.write("".join(json.dumps(each) + "\n" for each in commands))

    def ask(self, name: str, argument: Any = None) -> Any:
        self.say((name, argument))
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the engine has ended with {self.process.wait(10)}"
        return json.loads(line)


def main(configuration: str, rank: str, ranks: str) -> None:
    from engines.local.tests.parts import BLOCK, CHUNK, config, fill, kv_cache, metadata, opened, slots

    kv, whole = kv_cache(), [*range(1, 1 + BLOCKS)]
    about = metadata(world_size=int(ranks), worker_id=int(rank))
    with opened(kv, about, **json.loads(configuration)) as engine:

        def tokens(number: int) -> list[int]:
            return [number * 1000 + 100 * int(rank) + token for token in range(BLOCKS * BLOCK)]

        def store(number: int) -> int:
            fill(kv, whole, tokens(number))
            engine.store(tokens(number), slot_mapping=slots(whole))
            return engine.lookup(tokens(number), search_range=["LocalCPUBackend"])

        def retrieve(number: int) -> tuple[int, bool, float]:
            """Tokens that were found, whether their KV is right, and the seconds that it took."""
            for layer in kv:
                layer.zero_()
            began = time.monotonic()
            found = int(engine.retrieve(tokens(number), slot_mapping=slots(whole)).sum())
            took, read = time.monotonic() - began, [layer[whole[: found // BLOCK]].clone() for layer in kv]
            fill(kv, whole, tokens(number))
            same = all(bool((a == b[whole[: found // BLOCK]]).all()) for a, b in zip(read, kv, strict=True))
            return found, same, took

        commands: dict[str, Callable[[Any], Any]] = {"store": store, "retrieve": retrieve}
        commands["status"] = lambda _: engine.status()
        assert (engine.config.chunk_size, config().chunk_size) == (CHUNK, CHUNK)
        for line in sys.stdin:
            name, argument = json.loads(line)
            print(json.dumps(commands[name](argument), default=str), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
