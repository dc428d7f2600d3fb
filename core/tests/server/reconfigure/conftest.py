"""Servers whose adapters come and go and whose settings change."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from core.tests.server.changing_server import StartServer, servers_to_change
from lmcache_core.app.l2_tier import RunningAdapter
from lmcache_core.app.open_l2 import AdapterOpener


@pytest.fixture
def start() -> Iterator[StartServer]:
    with servers_to_change() as start_server:
        yield start_server


class Gate:
    """Blocks the opening of an adapter or a policy until `open` is set."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.came: list[Any] = []

    def wait(self) -> None:
        self.open.wait(30)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def slow_opening(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Adapters open as soon as the gate does."""
    really_open = AdapterOpener.open

    def open_late(self: AdapterOpener, *arguments: Any) -> RunningAdapter:
        gate.wait()
        adapter = really_open(self, *arguments)
        gate.came.append(adapter)
        return adapter

    monkeypatch.setattr(AdapterOpener, "open", open_late)
    return gate
