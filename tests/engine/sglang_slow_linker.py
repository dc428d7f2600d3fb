"""Our linker with loads that take seconds: a test can do something within one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import lmcache_sglang

LAYER_SECONDS: Final = 1.0


class NodeLinker(lmcache_sglang.NodeLinker):  # type: ignore[misc]
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        for pool in self._pools.values():
            pool.copies.__dict__["scatter"] = slowly(pool.copies.scatter)


def slowly(scatter: Callable[..., None]) -> Callable[..., None]:
    def wrapper(*given: Any) -> None:
        time.sleep(LAYER_SECONDS)
        scatter(*given)

    return wrapper
