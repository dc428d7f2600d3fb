from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.tests.client.scripted_server import ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    yield scripted
    scripted.close()
