"""`LMCACHE_TRACE_HOOKS=1`: every hook call as a line on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pluggy

VARIABLE: Final = "LMCACHE_TRACE_HOOKS"


class HookTrace:
    """One line per call that reaches a plugin: which plugin, which hook, how long.  One thread, that of the hooks."""

    def __init__(self) -> None:
        self._begun: list[float] = []  # a hook may call another one

    def watch(self, manager: pluggy.PluginManager) -> None:
        """Sees every call through this manager from now on, whoever makes it."""
        manager.add_hookcall_monitoring(self._before, self._after)

    def _before(self, hook: str, implementations: Sequence[Any], arguments: Mapping[str, Any]) -> None:
        self._begun.append(time.perf_counter())

    def _after(
        self, outcome: pluggy.Result[Any], hook: str, implementations: Sequence[Any], arguments: Mapping[str, Any]
    ) -> None:
        milliseconds = (time.perf_counter() - self._begun.pop()) * 1000
        end = f" raised={type(outcome.exception).__name__}" if outcome.exception else ""
        for implementation in implementations:
            plugin = implementation.plugin_name
            # in one piece, because other threads write there, too
            sys.stderr.write(f"lmcache: hook call plugin={plugin} hook={hook} ms={milliseconds:.3f}{end}\n")
