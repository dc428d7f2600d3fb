"""The `s3` adapter keeps every requirement on a real object store, which checks signatures and answers as AWS does."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from demo.server_process import HOST
from lmcache_devkit import L2AdapterSuite
from plugins.l2_s3.tests.bucket_media import BucketMedia
from tests.remote.backends import s3_of
from tests.remote.ceph import Ceph
from tests.remote.s3_servers import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def server(ceph: Ceph) -> S3Server:
    return s3_of(ceph, "requirements")


class TestOnCeph(L2AdapterSuite):
    offer = "s3"
    open_close_rounds = 20

    @pytest.fixture
    def prefix(self) -> str:
        return f"{uuid.uuid4().hex[:8]}/"

    @pytest.fixture
    def settings(self, server: S3Server, prefix: str) -> Mapping[str, Any]:
        return server.settings(prefix=prefix, shared=True)

    @pytest.fixture
    def small_settings(self, server: S3Server) -> Mapping[str, Any]:
        return server.settings(prefix=f"{uuid.uuid4().hex[:8]}/", max_capacity_gb=self.small_bytes / 2**30)

    @pytest.fixture
    def media(self, server: S3Server, prefix: str) -> Iterator[BucketMedia]:
        client = server.client()
        yield BucketMedia(client, server.bucket, prefix)
        client.close()

    @pytest.fixture
    def stalled(self, ceph: Ceph) -> Callable[[], AbstractContextManager[None]]:
        return ceph.silent


def test_nothing_of_it_listens_beyond_this_machine(ceph: Ceph) -> None:
    listening = {line.split()[1] for line in listeners(ceph.pids)}
    assert listening, "found no listener at all"
    loopback = ".".join(reversed(HOST.split(".")))
    wanted = "".join(f"{int(part):02X}" for part in loopback.split("."))
    assert {address.split(":")[0] for address in listening} == {wanted}


def listeners(pids: list[int]) -> list[str]:
    """Lines of the kernel's tables for TCP sockets on which one of these processes listens."""
    inodes = set()
    for pid in pids:
        for each in Path(f"/proc/{pid}/fd").iterdir():
            target = str(each.readlink()) if each.is_symlink() else ""
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    tables = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [line for line in tables if line.split()[3] == "0A" and line.split()[9] in inodes]
