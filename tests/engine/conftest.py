"""Engines and servers that are shared by tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from demo.engine_process import ENGINE_PYTHON, MODEL, EngineProcess
from demo.shared_memory import unmapped_files
from tests.engine.busy_site import BusySite
from tests.engine.reference import Reference
from tests.engine.site import CHUNK_TOKENS, DrivenSite, OwnSite, Site

RESTARTED_SECONDS: Final = 30.0
"""More than a killed server of another test takes to be up again."""

NEEDS_AVX512: Final = pytest.mark.skipif(
    "avx512f" not in Path("/proc/cpuinfo").read_text(), reason="vLLM has this on processors with AVX-512"
)


@pytest.fixture(scope="session")
def engine_environment() -> None:
    """Skips where no engine is installed."""
    if not ENGINE_PYTHON.exists() or not (MODEL / "model.safetensors").exists():
        pytest.skip("no engine environment here: run `make setup`")


@pytest.fixture(scope="package", autouse=True)
def nothing_left_in_shared_memory() -> Iterator[None]:
    """Fails the last test of this folder when an engine or a server has left memory that no process has mapped.

    Other processes of the same run kill servers meanwhile, and start them again: the next start removes what they left."""
    before = unmapped_files()
    yield
    deadline = time.monotonic() + RESTARTED_SECONDS
    while left := unmapped_files() - before:
        assert time.monotonic() < deadline, f"left behind: {', '.join(sorted(map(str, left)))}"
        time.sleep(0.2)


@pytest.fixture(scope="package")
def reference(engine_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    reference = Reference(
        EngineProcess(tmp_path_factory.mktemp("reference") / "engine.log", port=None, one_process=True)
    )
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
