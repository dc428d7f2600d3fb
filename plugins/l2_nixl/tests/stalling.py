"""A NIXL that carries nothing out for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from lmcache_nixl_agent.agent import Handle, NixlAgent


def stall_nixl(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """Within the context, no transfer ends; like NIXL, it keeps what was borrowed until it has."""
    go_on = threading.Event()
    go_on.set()
    has_ended = NixlAgent.has_ended

    def waiting(self: NixlAgent, handle: Handle) -> bool:
        return go_on.is_set() and has_ended(self, handle)

    monkeypatch.setattr(NixlAgent, "has_ended", waiting)

    @contextmanager
    def stalled() -> Iterator[None]:
        go_on.clear()
        try:
            yield
        finally:
            go_on.set()

    return stalled
