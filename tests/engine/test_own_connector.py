"""Our own connector in a real engine: the same answers from every tier, and the same objects as the stock one's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.engine_process import EngineProcess
from demo.l2_folder import L2Folder
from demo.prompts import random_prompt
from tests.conftest import StartServer
from tests.engine.comparison import assert_cached, assert_computed, assert_right
from tests.engine.every_tier import check_every_tier
from tests.engine.ladder import PROMPTS
from tests.engine.prefix_hits import check_prefix_hits
from tests.engine.reference import Reference
from tests.engine.site import HEARTBEAT_SECONDS, Site
from tests.engine.test_tensor_parallel import OBJECTS, SHORT_PROMPTS, WORKERS

pytestmark = pytest.mark.engine

CHUNK_TOKENS = 256
SETTINGS = {"lmcache.heartbeat_seconds": HEARTBEAT_SECONDS, "lmcache.lookup_timeout_ms": 5_000}
"""A lookup that waits for L2 is given up after half a second otherwise, and other tests may have the processor."""


class OwnSite(Site):
    """A site whose engine has our connector."""

    def new_engine(self, name: str) -> EngineProcess:
        return EngineProcess(self.folder / f"{name}.log", port=self.server.port, connector="own", extra=SETTINGS)


@pytest.fixture(scope="module")
def own_site(engine_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnSite]:
    site = OwnSite(CHUNK_TOKENS, tmp_path_factory.mktemp("own-site"))
    yield site
    site.close()


def test_the_same_answers_from_every_tier(own_site: OwnSite, reference: Reference) -> None:
    def check_hits_at_once() -> None:
        together = own_site.engine.ask_together(PROMPTS)
        assert_cached(together, CHUNK_TOKENS)
        assert_right(together, reference.answers(PROMPTS))

    check_every_tier(own_site, reference, check_hits_at_once)
    own_site.wait_nothing_held()
    assert "Traceback" not in own_site.engine.log.split("skip_tokenizer_init=True`")[-1]


@pytest.mark.slow
def test_a_stock_engine_takes_what_ours_stored(own_site: OwnSite, reference: Reference, tmp_path: Path) -> None:
    prompts = [random_prompt(20, 1_500), random_prompt(21, 700)]
    truth = reference.answers(prompts)
    own_site.wait_reconnected()
    assert_right(own_site.engine.ask(prompts), truth)
    with EngineProcess(tmp_path / "stock.log", port=own_site.server.port) as stock:
        from_cache = stock.ask(prompts)
        assert_cached(from_cache, CHUNK_TOKENS)
        assert_right(from_cache, truth)
        others = [random_prompt(22, 1_500)]
        assert_computed(stock.ask(others))
        back = own_site.engine.ask(others)
        assert_cached(back, CHUNK_TOKENS)
        assert_right(back, reference.answers(others))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_workers_store_and_load_a_shard_each(
    start_server: StartServer, reference: Reference, tmp_path: Path
) -> None:
    l2 = L2Folder(tmp_path / "l2")
    l2.path.mkdir()
    server = start_server("--l1-size-gb", "1", "--chunk-size", str(CHUNK_TOKENS), *l2.adapter_option())
    truth = reference.answers(SHORT_PROMPTS)
    patience = {"lmcache.heartbeat_seconds": 60.0}
    log_path = tmp_path / "engine.log"
    with EngineProcess(log_path, port=server.port, connector="own", extra=patience, tensor_parallel=WORKERS) as engine:
        cold = engine.ask(SHORT_PROMPTS)
        assert_computed(cold)
        assert_right(cold, truth)
        from_l1 = engine.ask(SHORT_PROMPTS)
        assert_cached(from_l1, CHUNK_TOKENS)
        assert_right(from_l1, truth)
        l2.wait_for_objects(OBJECTS, timeout_seconds=120)
    server.kill()
    server.start()
    with EngineProcess(log_path, port=server.port, connector="own", extra=patience, tensor_parallel=WORKERS) as engine:
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
