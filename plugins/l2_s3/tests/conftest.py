from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.remote.s3_servers import S3Server, moto_server, rclone_server


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with moto_server(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(scope="module")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with rclone_server(tmp_path_factory.mktemp("rclone")) as server:
        yield server
