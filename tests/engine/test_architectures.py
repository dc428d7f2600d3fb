"""Models with other layouts than the demo's: whatever path wrote a chunk, every path reads it, from L1 and from L2.

The stock connector copies by itself or lets the server do it; ours copies by itself.  Each engine finds what the one before
it stored, and the last one what is left after a restart of the server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from demo.cache_rule import whole_chunks
from demo.engine_process import EngineProcess
from demo.l2_folder import L2Folder
from demo.prompts import random_prompt
from tests.conftest import StartServer
from tests.engine.architectures import ARCHITECTURES, Architecture
from tests.engine.comparison import assert_cached, assert_computed, assert_right

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

CHUNK_TOKENS = 128
SERVER_DRIVEN = "stock-server-driven"
PATHS: dict[str, dict[str, Any]] = {
    "stock-engine-driven": {"connector": "stock", "extra": {"lmcache.mp.mp_transfer_mode": "engine_driven"}},
    SERVER_DRIVEN: {"connector": "stock", "extra": {"lmcache.mp.mp_transfer_mode": "lmcache_driven"}},
    "own": {"connector": "own", "extra": {"lmcache.share_with_stock": True}},
}


@pytest.fixture(params=ARCHITECTURES, ids=lambda architecture: architecture.name)
def architecture(request: pytest.FixtureRequest, engine_environment: None) -> Architecture:
    chosen: Architecture = request.param
    return chosen


@pytest.mark.parametrize("writer", PATHS)
def test_what_one_path_wrote_every_path_reads(
    architecture: Architecture, writer: str, start_server: StartServer, tmp_path: Path
) -> None:
    if not architecture.server_may_copy and writer == SERVER_DRIVEN:
        pytest.skip("refused by the server, docs/engines/kv-layouts.md says why: shown with each other writer")
    paths = [path for path in PATHS if architecture.server_may_copy or path != SERVER_DRIVEN]
    model = architecture.make(tmp_path)
    prompts = [random_prompt(1, length) for length in architecture.lengths]
    l2 = L2Folder(tmp_path / "l2")
    l2.path.mkdir()
    server = start_server("--l1-size-gb", "1", "--chunk-size", str(CHUNK_TOKENS), *l2.adapter_option())

    def engine(path: str) -> EngineProcess:
        log_path = tmp_path / f"{path}.log"
        return EngineProcess(log_path, port=server.port, model=model, block_size=architecture.block_size, **PATHS[path])

    with engine(writer) as first:
        cold = first.ask(prompts)
        assert_computed(cold)
        hits = first.ask(prompts)
    assert_cached(hits, CHUNK_TOKENS)
    truth = cold if architecture.recomputes_alike else hits
    assert_right(hits, truth)
    l2.wait_for_objects(sum(whole_chunks(length, CHUNK_TOKENS) for length in architecture.lengths), timeout_seconds=60)
    for reader in paths:
        if reader == writer:
            server.kill()
            server.start()
        with engine(reader) as other:
            if architecture.one_row and reader == SERVER_DRIVEN:
                assert_computed(other.ask([random_prompt(2, CHUNK_TOKENS + 1)]))
            answers = other.ask(prompts)
        assert_cached(answers, CHUNK_TOKENS)
        assert_right(answers, truth)
    if not architecture.server_may_copy:
        with engine(SERVER_DRIVEN) as refused:
            answers = refused.ask(prompts)
        assert_computed(answers)
        assert_right(answers, cold)
