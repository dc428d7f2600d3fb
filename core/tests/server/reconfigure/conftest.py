"""Servers whose adapters come and go and whose settings change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.tests.server.changing_server import StartServer, servers_to_change


@pytest.fixture
def start() -> Iterator[StartServer]:
    with servers_to_change() as start_server:
        yield start_server
