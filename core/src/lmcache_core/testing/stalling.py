"""Keeps a `BlockingL2Adapter` from getting answers, for the laws about backends that hang."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from lmcache_core.jobs.blocking_adapter import BlockingL2Adapter

_LONGEST_SECONDS = 30.0


def stall_methods(
    monkeypatch: pytest.MonkeyPatch, adapter: type[BlockingL2Adapter]
) -> Callable[[], AbstractContextManager[None]]:
    """What the fixture `stalled` returns: within the context, what an author wrote waits before it begins."""
    go_on = threading.Event()
    go_on.set()
    for verb in ("store", "load", "contains", "delete"):
        method = getattr(adapter, verb)

        def waiting(self: BlockingL2Adapter, *arguments: Any, method: Any = method) -> Any:
            go_on.wait(_LONGEST_SECONDS)
            return method(self, *arguments)

        monkeypatch.setattr(adapter, verb, waiting)

    @contextmanager
    def stalled() -> Iterator[None]:
        go_on.clear()
        try:
            yield
        finally:
            go_on.set()

    return stalled
