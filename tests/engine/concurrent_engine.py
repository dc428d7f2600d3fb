"""A real vLLM engine in a process of its own that many clients ask at once (`concurrent_driver.py`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.answer import Answer
from demo.child_process import ChildError
from demo.engine_process import EngineProcess, RequestError, answer_of

HERE = Path(__file__).resolve().parent
RUNNING_MAX = 16
"""Requests that the engine runs at once; with more clients than that there is a queue, for leaving it too."""


@dataclass(frozen=True, slots=True)
class Request:
    """What one client asks, and when it goes without waiting for the end: after a number of seconds or of tokens."""

    prompt: Sequence[int]
    leave_after_seconds: float | None = None
    leave_after_tokens: int | None = None

    @property
    def may_leave(self) -> bool:
        return self.leave_after_seconds is not None or self.leave_after_tokens is not None


End = Answer | RequestError | None
"""Of a request: its answer, the engine's fault, or None when its client has left."""


def end_of(line: Mapping[str, Any]) -> End:
    if "error" in line:
        return RequestError(line["error"])
    return None if "left" in line else answer_of(line)


class ConcurrentEngine(EngineProcess):
    """Like its base, and several clients can be served at once.  One thread."""

    def __init__(self, log_path: Path, *, port: int | None, extra: Mapping[str, Any] | None = None) -> None:
        options = ["--max-num-seqs", str(RUNNING_MAX)]
        super().__init__(log_path, port=port, extra=extra, driver=HERE / "concurrent_driver.py", options=options)
        self._next_id = 0

    def ask_together(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int = 8, timeout_seconds: float = 120.0
    ) -> list[Answer]:
        requests = [Request(prompt) for prompt in prompts]
        answers = []
        for end in self.serve(requests, max_tokens=max_tokens, timeout_seconds=timeout_seconds):
            if isinstance(end, RequestError):
                raise end
            assert end is not None
            answers.append(end)
        return answers

    def serve(
        self,
        requests: Sequence[Request],
        *,
        timeout_seconds: float,
        max_tokens: int = 8,
        on_end: Callable[[int], None] = lambda ended: None,
    ) -> list[End]:
        """All requests at once, and how each ended.  `on_end` gets after each how many have.

        Raises ChildError, and the engine is gone, when one of them has not ended in time.
        """
        deadline = time.monotonic() + timeout_seconds
        first = self._next_id
        self._next_id += len(requests)
        for number, request in enumerate(requests, first):
            self._send(
                {
                    "id": number,
                    "prompt": list(request.prompt),
                    "max_tokens": max_tokens,
                    "leave_after_seconds": request.leave_after_seconds,
                    "leave_after_tokens": request.leave_after_tokens,
                }
            )
        ends: dict[int, End] = {}
        while len(ends) < len(requests):
            try:
                line = self._next_line(deadline)
            except ChildError as error:
                open_ids = sorted(set(range(first, self._next_id)) - ends.keys())
                raise ChildError(f"requests {open_ids} have no end: {error}") from None
            ends[line["id"]] = end_of(line)
            on_end(len(ends))
        return [ends[number] for number in range(first, self._next_id)]
