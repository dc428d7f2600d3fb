"""Backends, and Ceph, which takes long to start, once for all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.remote.backends import Backend, running
from tests.remote.ceph import Ceph, missing_programs


@pytest.fixture(scope="session")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ceph]:
    """Takes 15 s and more to start.  Skips where Ceph is not installed."""
    if missing := missing_programs():
        pytest.skip(f"not installed: {', '.join(missing)}")
    with Ceph(tmp_path_factory.mktemp("c") / "d") as ceph:
        yield ceph


@pytest.fixture(scope="module")
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """The one whose name the test is parametrised with; empty for each module."""
    name: str = request.param
    if name == "s3-ceph" and (missing := missing_programs()):
        pytest.skip(f"not installed: {', '.join(missing)}")
    with running(name, tmp_path_factory.mktemp("b")) as backend:
        yield backend
