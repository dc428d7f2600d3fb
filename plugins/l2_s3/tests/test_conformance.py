"""The `s3` adapter keeps every requirement, on stores that can do more and less."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import pytest

from lmcache_devkit import L2AdapterSuite
from lmcache_devkit.l2.batches import Batches
from lmcache_devkit.l2.declared import Declared
from lmcache_devkit.l2.deletion import Deletion
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.l2.media_damage import MediaDamage
from lmcache_devkit.l2.sharing import Sharing
from lmcache_devkit.l2.stalls import Stalls
from plugins.l2_s3.tests.bucket_media import BucketMedia, stopped_process
from tests.remote.s3_servers import S3Server


class OnMoto(L2Fixtures):
    offer = "s3"
    way: ClassVar[Mapping[str, Any]] = {}
    payload_bytes_max = 20 * 2**20 + 1
    open_close_rounds = 3

    @pytest.fixture
    def server(self, moto: S3Server) -> S3Server:
        return moto

    @pytest.fixture
    def prefix(self) -> str:
        return f"kv-{secrets.token_hex(4)}/"

    @pytest.fixture
    def settings(self, server: S3Server, prefix: str) -> Mapping[str, Any]:
        return server.settings(prefix=prefix, **self.way)

    @pytest.fixture
    def small_settings(self, server: S3Server, prefix: str) -> Mapping[str, Any]:
        return server.settings(prefix=f"small-{prefix}", max_capacity_gb=self.small_bytes / 2**30, **self.way)

    @pytest.fixture
    def media(self, server: S3Server, prefix: str) -> Iterator[BucketMedia]:
        client = server.client()
        yield BucketMedia(client, server.bucket, prefix)
        client.close()

    @pytest.fixture
    def stalled(self, server: S3Server) -> Callable[[], AbstractContextManager[None]]:
        return stopped_process(server)


class TestFirst(OnMoto, Declared, Deletion, MediaDamage):
    """What is soon run: objects come and go, and what is wrong with them is found."""


class TestSharedFirst(OnMoto, Sharing):
    way: ClassVar[Mapping[str, Any]] = {"shared": True, "owner": False}


@pytest.mark.slow
class TestStoppedServer(OnMoto, Stalls):
    pass


@pytest.mark.slow
class TestAlone(OnMoto, L2AdapterSuite):
    pass


@pytest.mark.slow
class TestShared(OnMoto, L2AdapterSuite):
    way: ClassVar[Mapping[str, Any]] = {"shared": True, "owner": False}
    small_settings = L2Fixtures.small_settings  # a guest counts nothing


@pytest.mark.slow
class TestInParts(OnMoto, Batches, MediaDamage):
    """Larger objects than one part, with checksums that the store compares."""

    way: ClassVar[Mapping[str, Any]] = {"part_size_mb": 5, "checksum": "crc32c"}


@pytest.mark.slow
class TestRclone(OnMoto, L2AdapterSuite):
    """A store that replaces what is there, whatever a request says, and lists directories."""

    way: ClassVar[Mapping[str, Any]] = {"owner_lease_seconds": 2}

    @pytest.fixture
    def server(self, rclone: S3Server) -> S3Server:
        return rclone
