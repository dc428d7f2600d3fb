"""Engines and servers that are shared by tests: an engine takes half a minute to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from demo.engine_process import ENGINE_PYTHON, MODEL
from demo.shared_memory import shared_by_nobody
from tests.engine.busy_site import BusySite
from tests.engine.reference import Reference
from tests.engine.site import CHUNK_TOKENS, DrivenSite, OwnSite, Site


@pytest.fixture(scope="session")
def engine_environment() -> None:
    """Skips where no engine is installed."""
    if not ENGINE_PYTHON.exists() or not (MODEL / "model.safetensors").exists():
        pytest.skip("no engine environment here: run `make setup`")


@pytest.fixture(scope="session", autouse=True)
def nothing_left_in_shared_memory() -> Iterator[None]:
    """Fails the session's last test when an engine or a server of ours has left memory that nobody has mapped."""
    before = shared_by_nobody()
    yield
    left = shared_by_nobody() - before
    assert not left, f"left behind: {', '.join(sorted(map(str, left)))}"


@pytest.fixture(scope="package")
def reference(engine_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    reference = Reference(tmp_path_factory.mktemp("reference") / "engine.log")
    yield reference
    reference.close()


@pytest.fixture(scope="package")
def site(
    engine_environment: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A site of the chunk size that the test is parametrized with."""
    chunk_tokens: int = request.param
    site = Site(chunk_tokens, tmp_path_factory.mktemp(f"site-{chunk_tokens}"))
    yield site
    site.close()


@pytest.fixture(scope="package")
def busy_site(engine_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BusySite]:
    site = BusySite(tmp_path_factory.mktemp("busy-site"))
    yield site
    site.close()


@pytest.fixture(scope="module")
def own_site(engine_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnSite]:
    site = OwnSite(CHUNK_TOKENS, tmp_path_factory.mktemp("own-site"))
    yield site
    site.close()


@pytest.fixture(scope="module")
def driven_site(engine_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrivenSite]:
    site = DrivenSite(CHUNK_TOKENS, tmp_path_factory.mktemp("driven-site"))
    yield site
    site.close()
