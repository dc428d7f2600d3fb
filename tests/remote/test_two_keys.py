"""Two servers that share a backend and encrypt with different keys: neither loads in vain what it cannot read."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from demo.server_process import ServerProcess
from tests.media_faults.site import wait_for
from tests.remote.backends import PREFIX, Backend
from tests.remote.site import RemoteSite, small_server

pytestmark = [pytest.mark.parametrize("backend", ["s3", pytest.param("redis", marks=pytest.mark.slow)], indirect=True)]


def encrypted(backend: Backend, key: str) -> Mapping[str, Any]:
    return {**backend.through(backend.port, shared=True), "serde": {"type": "aesgcm", "keys": [{"value": key}]}}


@pytest.fixture
def sites(backend: Backend, tmp_path: Path) -> Iterator[tuple[RemoteSite, RemoteSite]]:
    with ExitStack() as stack:
        found = []
        for name, key in (("first", secrets.token_hex(32)), ("second", secrets.token_hex(32))):
            server = ServerProcess(small_server(encrypted(backend, key)), tmp_path / f"{name}.log")
            found.append(RemoteSite(stack.enter_context(server)))
            stack.callback(found[-1].close)
        first, second = found
        yield first, second


def rejected(site: RemoteSite) -> int:
    return int(site.status["prefetch"]["rejected"])


@pytest.mark.slow
def test_what_another_key_encrypted_is_loaded_once(backend: Backend, sites: tuple[RemoteSite, RemoteSite]) -> None:
    first, second = sites
    first.in_l2(1)
    there = backend.objects(PREFIX)

    def is_rejected() -> bool:  # the first lookup may time out on a busy machine
        assert second.hits(1) == 0
        return rejected(second) > 0

    wait_for(is_rejected)
    loaded = rejected(second)
    for _ in range(3):
        assert second.hits(1) == 0
    assert rejected(second) == loaded
    second.store(1)
    second.settle()
    assert backend.objects(PREFIX) == there, "the other server's objects are left alone"
    assert first.all_hits(1)
