"""An engine whose answers can be held back, and whose operations can fail on cue."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from lmcache_l2_fs_native import opening
from lmcache_native.io import READ_FILE, IoEngine

Answer = tuple[int, int, bytes | None]
NOWHERE = b"/dev/null/nowhere"


class GatedEngine:
    """Everything else is the real engine's."""

    def __init__(self, real: IoEngine) -> None:
        self.batches: list[list[int]] = []
        """The kinds of operations of each `submit`."""
        self.operations: list[Any] = []
        """All of them, in order."""
        self.gate = threading.Event()
        """Answers pass while it is set."""
        self.gate.set()
        self.faults: dict[int, list[int]] = {}
        """By kind of operation: the errors of the next ones, which do nothing else."""
        self._failing: dict[int, int] = {}
        self._real = real

    def submit(self, operations: Sequence[Any]) -> None:
        self.batches.append([kind for kind, *_ in operations])
        self.operations.extend(operations)
        self._real.submit([self._or_fault(operation) for operation in operations])

    def answers(self) -> list[Answer]:
        if not self.gate.is_set():
            return []  # the descriptor stays readable, so that it is asked again
        return [
            (token, -self._failing.pop(token), None) if token in self._failing else (token, result, digest)
            for token, result, digest in self._real.answers()
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def _or_fault(self, operation: Any) -> Any:
        kind, token, *_ = operation
        faults = self.faults.get(kind)
        if not faults:
            return operation
        self._failing[token] = faults.pop(0)
        return (READ_FILE, token, NOWHERE, 0, 0, 0, -1, 0)


def gate_engines(monkeypatch: pytest.MonkeyPatch) -> list[GatedEngine]:
    """Every engine that an adapter is opened with from now on is a gated one, and in the list."""
    made: list[GatedEngine] = []

    def make(*arguments: Any) -> GatedEngine:
        made.append(GatedEngine(IoEngine(*arguments)))
        return made[-1]

    monkeypatch.setattr(opening, "IoEngine", make)
    return made
