"""The `redis` adapter keeps every requirement, each way it can be set up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
import redis

from lmcache_core import ObjectKey
from lmcache_devkit import L2AdapterSuite, Media, fail_methods
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.l2.sharing import Sharing
from lmcache_l2_redis.client import Client
from lmcache_object_remote import object_name
from tests.remote.redis_servers import HOST, RedisServer, redis_cluster, redis_server

PERSISTENT: Final = ("--appendonly", "yes", "--auto-aof-rewrite-percentage", "0")


class RedisMedia(Media):
    """Objects of one piece each, behind an adapter's back."""

    def __init__(self, client: redis.Redis | redis.RedisCluster, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    def read(self, key: ObjectKey) -> bytes | None:
        found = self._client.get(self._name(key))
        assert found is None or isinstance(found, bytes)
        return found

    def write(self, key: ObjectKey, data: bytes) -> None:
        self._client.set(self._name(key), data)

    def remove(self, key: ObjectKey) -> None:
        self._client.delete(self._name(key))

    def _name(self, key: ObjectKey) -> str:
        return object_name(self._prefix, key)


class RedisSetup(L2Fixtures):
    offer = "redis"
    way: ClassVar[Mapping[str, Any]] = {}
    options: ClassVar[Sequence[str]] = ()
    payload_bytes_max = 16 * 2**20
    open_close_rounds = 50

    @pytest.fixture(scope="class")
    @classmethod
    def servers(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[RedisServer]]:
        with redis_server(tmp_path_factory.mktemp("r"), *cls.options) as server:
            yield [server]

    @pytest.fixture
    def place(self, servers: Sequence[RedisServer]) -> Mapping[str, Any]:
        return {"host": HOST, "port": servers[0].port}

    @pytest.fixture
    def prefix(self, tmp_path: Path) -> str:
        """A backend of the test's own, so that usage begins at nothing."""
        return f"{tmp_path.name}/"

    @pytest.fixture
    def settings(self, place: Mapping[str, Any], prefix: str) -> Mapping[str, Any]:
        return {"key_prefix": prefix, "owner_lease_seconds": 1, **place, **self.way}

    @pytest.fixture
    def small_settings(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**settings, "owner": True, "key_prefix": "small/", "max_capacity_gb": self.small_bytes / 2**30}

    @pytest.fixture
    def media(self, servers: Sequence[RedisServer], prefix: str) -> Iterator[Media | None]:
        with servers[0].client() as client:
            yield RedisMedia(client, prefix)

    @pytest.fixture
    def stalled(self, servers: Sequence[RedisServer]) -> Callable[[], AbstractContextManager[None]]:
        @contextmanager
        def stalled() -> Iterator[None]:
            for server in servers:
                server.freeze()
            try:
                yield
            finally:
                for server in servers:
                    server.thaw()

        return stalled

    @pytest.fixture
    def failing(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
        return fail_methods(monkeypatch, {Client: ("ask", "set_value", "get_into")})


class TestDurable(RedisSetup, L2AdapterSuite):
    """What is written to disk, and never evicted."""

    options: ClassVar[Sequence[str]] = PERSISTENT
    way: ClassVar[Mapping[str, Any]] = {"server_persists": True}


class TestSharing(RedisSetup, Sharing):
    """What only several servers show; all other requirements with them are slow."""

    way: ClassVar[Mapping[str, Any]] = {"shared": True}


# Another server's memory outlives ours, so the probe for durability passes; it is not promised, because that server may be
# started again, too.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::lmcache_devkit.UndeclaredCapability")
class TestShared(RedisSetup, L2AdapterSuite):
    way: ClassVar[Mapping[str, Any]] = {"shared": True}


@pytest.mark.filterwarnings("ignore::lmcache_devkit.UndeclaredCapability")
@pytest.mark.slow
class TestInPieces(RedisSetup, L2AdapterSuite):
    """Every object that is longer than a piece lies in several."""

    offer = "valkey"
    way: ClassVar[Mapping[str, Any]] = {"value_piece_bytes": 65_536, "num_connections": 3}
    payload_bytes_max = 4 * 2**20


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::lmcache_devkit.UndeclaredCapability")
class TestCluster(RedisSetup, L2AdapterSuite):
    offer = "resp"
    way: ClassVar[Mapping[str, Any]] = {"shared": True, "value_piece_bytes": 65_536}
    payload_bytes_max = 4 * 2**20

    @pytest.fixture(scope="class")
    @classmethod
    def servers(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[RedisServer]]:
        with redis_cluster(tmp_path_factory.mktemp("c")) as servers:
            yield servers

    @pytest.fixture
    def place(self, servers: Sequence[RedisServer]) -> Mapping[str, Any]:
        return {"nodes": [f"{HOST}:{servers[0].port}"]}

    @pytest.fixture
    def media(self, servers: Sequence[RedisServer], prefix: str) -> Iterator[Media | None]:
        with redis.RedisCluster(host=HOST, port=servers[0].port) as client:
            yield RedisMedia(client, prefix)
