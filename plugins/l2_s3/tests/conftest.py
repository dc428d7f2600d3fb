from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context
from lmcache_devkit.l2_driver import L2Driver
from lmcache_l2_s3.adapter import S3Adapter
from lmcache_l2_s3.config import S3Settings
from plugins.l2_s3.tests.opened import Open
from tests.remote.http_faults import HttpFaults
from tests.remote.s3_servers import S3Server, moto_server, rclone_server


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with moto_server(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(scope="module")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with rclone_server(tmp_path_factory.mktemp("rclone")) as server:
        yield server


@pytest.fixture
def memory() -> BorrowedMemory:
    return BorrowedMemory()


@pytest.fixture
def proxy(moto: S3Server) -> Iterator[HttpFaults]:
    with HttpFaults(int(moto.host.rpartition(":")[2])) as proxy:
        yield proxy


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"t{abs(hash(request.node.name))}/"


@pytest.fixture
def open_here(moto: S3Server, proxy: HttpFaults, memory: BorrowedMemory, prefix: str) -> Iterator[Open]:
    """`open_here(host=..., ...)` opens an adapter, through the proxy where it is named; the test's end closes it, while the
    proxy still runs."""
    with ExitStack() as closing:

        def open_here(host: str | None = None, server: S3Server = moto, boot_id: str = "", **settings: Any) -> L2Driver:
            written = server.settings(prefix=prefix, **settings)
            if host is not None:
                written["s3_endpoint"] = f"{host}/{server.bucket}"
            context = adapter_context(memory, name="s3", boot_id=boot_id)
            adapter = S3Adapter(S3Settings.model_validate(written), context)
            closing.callback(adapter.close, 10)
            return L2Driver(adapter)

        yield open_here
        proxy.switch(None)
