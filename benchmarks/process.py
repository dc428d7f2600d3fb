"""A server that can be started and stopped, ours or not."""

from __future__ import annotations

from typing import Protocol


class Process(Protocol):
    port: int
    http_port: int
    """0 where there is no admin API."""

    @property
    def pid(self) -> int: ...

    def start(self, timeout_seconds: float = ...) -> None:
        """Returns when it answers; raises ChildError or BenchmarkError when it does not."""

    def stop(self) -> int:
        """Returns the exit status."""
