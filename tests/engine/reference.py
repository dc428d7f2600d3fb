"""What the model says without any cache: the truth that every other answer is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from demo.answer import Answer
from demo.engine_process import EngineProcess


class Reference:
    """Asks an engine without a cache, once for each prompt.  The engine starts with the first question."""

    def __init__(self, engine: EngineProcess) -> None:
        """`engine`: one without a cache, not started yet.  It ends with `close`."""
        self._engine = engine
        self._started = False
        self._known: dict[tuple[int, ...], Answer] = {}

    def answers(self, prompts: Sequence[Sequence[int]]) -> list[Answer]:
        missing = [prompt for prompt in prompts if tuple(prompt) not in self._known]
        if missing and not self._started:
            self._engine.start()
            self._started = True
        for prompt, answer in zip(missing, self._engine.ask(missing), strict=True):
            self._known[tuple(prompt)] = answer
        return [self._known[tuple(prompt)] for prompt in prompts]

    def close(self) -> None:
        self._engine.kill()
