from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.tests.server.cache.cache_site import Site
from core.tests.server.cache_resource import operator_of
from core.tests.server.conftest import StartServer
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine


@pytest.fixture
def site(start_server: StartServer) -> Iterator[Site]:
    server = start_server(http_enabled=True, http_port=free_port(), l2_adapter=({"type": "memory"},))
    operator = operator_of(server)
    with FakeEngine(server.info.engine_endpoint) as engine:
        yield Site(server, operator, engine)
