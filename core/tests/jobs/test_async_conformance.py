"""An adapter of coroutines keeps every law."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from core.tests.jobs.shelf_adapter import Shelf
from lmcache_core import (
    Offer,
)
from lmcache_core.testing.l2_suite import L2AdapterSuite


class TestShelf(L2AdapterSuite):
    offer = Offer("shelf", "For tests", f"{Shelf.__module__}:open_shelf", capabilities=Shelf.capabilities)
    payload_bytes_max = 2**20

    @pytest.fixture
    def stalled(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
        go_on = threading.Event()
        go_on.set()
        for verb in ("store", "load", "contains", "delete"):
            method = getattr(Shelf, verb)

            async def waiting(self: Shelf, *arguments: Any, method: Any = method) -> Any:
                while not go_on.is_set():
                    await asyncio.sleep(0.002)
                return await method(self, *arguments)

            monkeypatch.setattr(Shelf, verb, waiting)

        @contextmanager
        def stalled() -> Iterator[None]:
            go_on.clear()
            try:
                yield
            finally:
                go_on.set()

        return stalled
