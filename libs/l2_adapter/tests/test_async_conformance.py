"""An adapter of coroutines keeps every requirement."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from libs.l2_adapter.tests.shelf_adapter import Shelf
from lmcache_core import (
    Offer,
)
from lmcache_devkit.l2_suite import L2AdapterSuite
from lmcache_devkit.stalling import stall_methods


class TestShelf(L2AdapterSuite):
    offer = Offer("shelf", "For tests", f"{Shelf.__module__}:open_shelf", capabilities=Shelf.capabilities)
    payload_bytes_max = 2**20

    @pytest.fixture
    def stalled(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
        return stall_methods(monkeypatch, Shelf)
