"""Our own connector in a real engine: the same objects as the stock one's, and shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from demo.engine_process import EngineProcess
from demo.l2_folder import L2Folder
from demo.prompts import random_prompt
from tests.conftest import StartServer
from tests.engine.comparison import assert_cached, assert_computed, assert_right
from tests.engine.prefix_hits import check_prefix_hits
from tests.engine.reference import Reference
from tests.engine.site import CHUNK_TOKENS, SPINNING_WORKERS, OwnSite
from tests.engine.test_tensor_parallel import OBJECTS, SHORT_PROMPTS, WORKERS

pytestmark = pytest.mark.engine


SHARING: dict[str, Any] = {"connector": "own", "extra": {"lmcache.share_with_stock": True}}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_stock_engine_takes_what_ours_stored(start_server: StartServer, reference: Reference, tmp_path: Path) -> None:
    prompts, others = [random_prompt(20, 1_500), random_prompt(21, 700)], [random_prompt(22, 1_500)]
    truth = reference.answers(prompts)
    port = start_server("--l1-size-gb", "1", "--chunk-size", str(CHUNK_TOKENS)).port
    with (
        EngineProcess(tmp_path / "own.log", port=port, **SHARING) as own,
        EngineProcess(tmp_path / "stock.log", port=port) as stock,
    ):
        assert_right(own.ask(prompts), truth)
        from_cache = stock.ask(prompts)
        assert_cached(from_cache, CHUNK_TOKENS)
        assert_right(from_cache, truth)
        assert_computed(stock.ask(others))
        back = own.ask(others)
        assert_cached(back, CHUNK_TOKENS)
        assert_right(back, reference.answers(others))


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_workers_store_and_load_a_shard_each(
    start_server: StartServer, reference: Reference, tmp_path: Path
) -> None:
    l2 = L2Folder(tmp_path / "l2")
    l2.path.mkdir()
    options = ("--l1-size-gb", "1", "--chunk-size", str(CHUNK_TOKENS), "--lookup-timeout-seconds", "60")
    server = start_server(*options, *l2.adapter_option())
    truth = reference.answers(SHORT_PROMPTS)
    own: dict[str, Any] = {"connector": "own", "extra": SPINNING_WORKERS, "tensor_parallel": WORKERS}
    log_path = tmp_path / "engine.log"
    with EngineProcess(log_path, port=server.port, **own) as engine:
        cold = engine.ask(SHORT_PROMPTS)
        assert_computed(cold)
        assert_right(cold, truth)
        from_l1 = engine.ask(SHORT_PROMPTS)
        assert_cached(from_l1, CHUNK_TOKENS)
        assert_right(from_l1, truth)
        l2.wait_for_objects(OBJECTS, timeout_seconds=120)
    server.kill()
    server.start()
    with EngineProcess(log_path, port=server.port, **own) as engine:
        from_l2 = engine.ask(SHORT_PROMPTS)
        assert_cached(from_l2, CHUNK_TOKENS)
        assert_right(from_l2, truth)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_prefix_hits_of_one_chunk_to_256(engine_environment: None, reference: Reference, tmp_path: Path) -> None:
    site = OwnSite(32, tmp_path)
    try:
        check_prefix_hits(site, reference)
    finally:
        site.close()
