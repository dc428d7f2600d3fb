from __future__ import annotations

from collections.abc import Iterator

import pytest

from libs.client.tests.scripted_server import ScriptedServer
from lmcache_client.channel import EngineChannel


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    yield scripted
    scripted.close()


@pytest.fixture
def channel(server: ScriptedServer) -> Iterator[EngineChannel]:
    with EngineChannel(server.endpoint, timeout_seconds=10) as connected:
        yield connected
