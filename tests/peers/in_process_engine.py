"""An engine with a cache of its own, as a process: `python -m tests.peers.in_process_engine '{"role": ...}'`.

It reads commands as lines of JSON, `[name, argument]`, and answers each with a line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from demo.preloaded import OURS, Preloaded

ROOT: Final = Path(__file__).parents[2]
BLOCKS: Final = 5
"""Of a prompt: two whole chunks, and half a one."""
END_SECONDS: Final = 60.0


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@cache
def _preloaded() -> Preloaded:
    """What starts engines: torch is most of what one costs."""
    return Preloaded(Path(sys.executable), _environment(), [*OURS, "engines.local.tests.parts"])


class InProcessEngine:
    """`with InProcessEngine(configuration) as engine:`"""

    def __init__(self, configuration: Mapping[str, Any], rank: int = 0, ranks: int = 1) -> None:
        self._given = [json.dumps(configuration), str(rank), str(ranks)]

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.peers.in_process_engine", *self._given]
        assert sys.__stderr__
        self.process = _preloaded().popen(command, _environment(), sys.__stderr__, piped=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process.stdin
        assert self.process.stdout
        if error is not None:
            self.kill()
        with self.process.stdout, contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(END_SECONDS)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)

    def say(self, *commands: tuple[str, Any]) -> None:
        """Their answers are not read."""
        assert self.process.stdin
        self.process.stdin.write("".join(json.dumps(each) + "\n" for each in commands))
        self.process.stdin.flush()

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
