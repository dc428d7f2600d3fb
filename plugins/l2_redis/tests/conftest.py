from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context
from lmcache_devkit.l2_driver import L2Driver
from lmcache_l2_redis.adapter import RedisAdapter
from lmcache_l2_redis.config import RedisSettings
from lmcache_l2_redis.opening import open_redis
from plugins.l2_redis.tests.scripted import Scripted
from tests.remote.redis_servers import RedisServer, redis_server

OpenRedis = Callable[..., L2Driver]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Of this module's own; a test may leave objects, under a prefix of its own."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    with Scripted() as server:
        yield server


@pytest.fixture
def memory() -> BorrowedMemory:
    return BorrowedMemory()


@pytest.fixture
def open_at(memory: BorrowedMemory, tmp_path: Path) -> Iterator[OpenRedis]:
    """`open_at(port, ttl_seconds=1, ...)` opens an adapter and, unless `known=False`, waits until it knows what is there;
    the test's end closes all of them.  Without a `key_prefix` they share one, of the test's own."""
    opened: list[RedisAdapter] = []

    def open_at(port: int | None = None, *, known: bool = True, **settings: Any) -> L2Driver:
        place = {} if port is None else {"host": "127.0.0.1", "port": port}
        given = {"key_prefix": f"{tmp_path.name}/", "owner_lease_seconds": 2, **place, **settings}
        adapter = open_redis(RedisSettings.model_validate(given), adapter_context(memory, name="redis"))
        opened.append(adapter)
        driver = L2Driver(adapter)
        if known:
            driver.usage()
        return driver

    yield open_at
    for adapter in opened:
        adapter.close(30)
