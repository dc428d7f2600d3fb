"""Both ports on addresses of IPv6, in each way that they are written."""

from __future__ import annotations

import json
import socket
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from core.tests.server.conftest import StartServer
from core.tests.server.test_controller_faults import wait_for
from lmcache_devkit.fake_engine import FakeEngine

TOKENS = list(range(160))


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.mark.parametrize("host", ["::1", "[::1]", "::"])
def test_engines_and_admins_are_answered(start_server: StartServer, host: str) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        http_port = probe.getsockname()[1]
    server = start_server(
        host=host, http_enabled=True, http_host=host, http_port=http_port, http_allow_unauthenticated=True
    )
    endpoint = server.info.engine_endpoint
    assert endpoint.startswith(f"tcp://[{host.strip('[]')}]:")
    addresses = ["[::1]", "127.0.0.1"] if host == "::" else ["[::1]"]
    for address in addresses:
        with FakeEngine(f"tcp://{address}:{endpoint.rpartition(':')[2]}") as engine:
            assert engine.store(TOKENS)
            assert engine.lookup(TOKENS, f"r {address}") == 10
            engine.end(f"r {address}")
    wait_for(lambda: status(http_port) == "healthy")


def status(http_port: int) -> str | None:
    try:
        with urlopen(f"http://[::1]:{http_port}/healthcheck", timeout=10) as answer:
            return str(json.load(answer)["status"])
    except URLError:  # not yet
        return None
