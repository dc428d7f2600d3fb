"""A stock engine on the CPU that lets the server copy: computed, from L1, and from L2 after the server was killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.engine_process import EngineProcess
from demo.prompts import random_prompt
from tests.engine.comparison import assert_cached, assert_computed, assert_right
from tests.engine.every_tier import check_every_tier
from tests.engine.prefix_hits import check_prefix_hits
from tests.engine.reference import Reference
from tests.engine.site import HEARTBEAT_SECONDS, Site

pytestmark = pytest.mark.engine

CHUNK_TOKENS = 256


class DrivenSite(Site):
    """Its engine registers its pages and sends block ids."""

    def new_engine(self, name: str) -> EngineProcess:
        extra = {"lmcache.mp.heartbeat_interval": HEARTBEAT_SECONDS, "lmcache.mp.mp_transfer_mode": "lmcache_driven"}
        return EngineProcess(self.folder / f"{name}.log", port=self.server.port, extra=extra)


@pytest.fixture(scope="module")
def driven_site(engine_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrivenSite]:
    site = DrivenSite(CHUNK_TOKENS, tmp_path_factory.mktemp("driven-site"))
    yield site
    site.close()


def test_the_same_answers_from_every_tier(driven_site: DrivenSite, reference: Reference) -> None:
    def check_that_the_server_copied() -> None:
        moved = driven_site.server.status()["modules"]["lmcache_driven"]
        assert moved["stored_bytes"] > 0
        assert moved["retrieved_bytes"] > 0
        assert moved["transfers_failed"] == 0
        assert moved["registrations_refused"] == {}

    check_every_tier(driven_site, reference, check_that_the_server_copied)


@pytest.mark.slow
def test_an_engine_that_copies_itself_finds_what_the_server_copied(
    driven_site: DrivenSite, reference: Reference
) -> None:
    prompts = [random_prompt(11, 3_000)]
    assert_computed(driven_site.engine.ask(prompts))
    with Site.new_engine(driven_site, "copying") as copying:
        answers = copying.ask(prompts)
    assert_cached(answers, CHUNK_TOKENS)
    assert_right(answers, reference.answers(prompts))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_prefix_hits_of_one_chunk_to_256(engine_environment: None, reference: Reference, tmp_path: Path) -> None:
    site = DrivenSite(32, tmp_path)
    try:
        check_prefix_hits(site, reference)
    finally:
        site.close()
