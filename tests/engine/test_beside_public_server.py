"""The public server of the engine environment beside ours: engines must not be able to tell them apart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.transfer import PUBLIC_SERVER
from demo.engine_process import EngineProcess
from demo.server_process import ServerProcess
from tests.engine.comparison import assert_cached, assert_right
from tests.engine.ladder import CHUNK_SIZES, PROMPTS
from tests.engine.reference import Reference
from tests.engine.site import Site

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture
def public_server(site: Site, tmp_path: Path) -> Iterator[ServerProcess]:
    options = ["--l1-size-gb", "1", "--no-l1-use-lazy", "--eviction-policy", "LRU", "--supported-transfer-mode", "auto"]
    options += ["--chunk-size", str(site.chunk_tokens)]
    executable = PUBLIC_SERVER
    with ServerProcess(options, tmp_path / "public-server.log", executable=executable) as server:
        yield server


@pytest.mark.parametrize("site", CHUNK_SIZES, indirect=True)
def test_the_same_hits_and_answers(
    site: Site, public_server: ServerProcess, reference: Reference, tmp_path: Path
) -> None:
    with EngineProcess(tmp_path / "engine.log", port=public_server.port) as engine:
        engine.ask(PROMPTS)
        theirs = engine.ask(PROMPTS)
    site.engine.ask(PROMPTS)
    ours = site.engine.ask(PROMPTS)
    assert_right(theirs, reference.answers(PROMPTS))
    assert_right(ours, theirs)
    assert_cached(theirs, site.chunk_tokens)
    assert [answer.cached_tokens for answer in ours] == [answer.cached_tokens for answer in theirs]
