"""One server for all tests of a module, which leave nothing held in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from demo.server_process import ServerProcess
from engines.vllm.tests.test_worker_transfers import OPTIONS, quiet
from engines.vllm.tests.worker_kit import until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(OPTIONS, tmp_path_factory.mktemp("server") / "log") as process:
        yield process


@pytest.fixture
def nothing_stays_held(server: ServerProcess) -> Iterator[None]:
    yield
    assert until(lambda: quiet(server)), server.status()["l1"]
