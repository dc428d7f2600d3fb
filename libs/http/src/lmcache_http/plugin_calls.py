"""Calls routes of plugins, those of each on threads of its own: one that never returns takes a thread from its own plugin,
and nothing from others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lmcache_core import LMCacheError
from lmcache_http.daemon_pool import DaemonPool

THREADS: Final = 4
"""For each plugin."""
UNANSWERED_MAX: Final = 32
"""Calls of one plugin that may wait or run."""
ANSWER_SECONDS: Final = 30.0


class BusyPluginError(LMCacheError):
    """Too many calls of this plugin have not been answered."""


class PluginCalls:
    """`call` is for one event loop, `close` for any thread once that has ended."""

    def __init__(self, seconds: float = ANSWER_SECONDS) -> None:
        self._seconds = seconds
        self._pools: dict[str, DaemonPool] = {}

    async def call(self, plugin: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function returns or raises; TimeoutError where that takes too long, whatever becomes of it then.
        Raises BusyPluginError."""
        import asyncio  # here, because the start does not wait for an event loop

        pool = self._pools.get(plugin)
        if pool is None:
            pool = self._pools[plugin] = DaemonPool(f"admin-{plugin}", THREADS)
        if pool.unanswered >= UNANSWERED_MAX:
            raise BusyPluginError(f"plugin '{plugin}' has not answered {UNANSWERED_MAX} requests yet; try again later")
        future = pool.submit(function, *arguments)
        return await asyncio.wait_for(asyncio.wrap_future(future), self._seconds)

    def close(self) -> None:
        """Threads that are not in a call end."""
        for pool in self._pools.values():
            pool.shutdown()
