"""The same prompts through every tier, for each way that bytes are moved: computed, from L1, and from L2 after the server
was killed.

In one file, so that one process runs them and they share the engine that says what is right."""

from __future__ import annotations

import pytest

from tests.engine.comparison import assert_cached, assert_right
from tests.engine.every_tier import check_every_tier
from tests.engine.ladder import CHUNK_SIZES, PROMPTS
from tests.engine.reference import Reference
from tests.engine.site import DrivenSite, OwnSite, Site

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    "site", [size if size == 32 else pytest.param(size, marks=pytest.mark.slow) for size in CHUNK_SIZES], indirect=True
)
def test_a_stock_engine_that_copies(site: Site, reference: Reference) -> None:
    check_every_tier(site, reference)


def test_our_connector(own_site: OwnSite, reference: Reference) -> None:
    def check_hits_at_once() -> None:
        together = own_site.engine.ask_together(PROMPTS)
        assert_cached(together, own_site.chunk_tokens)
        assert_right(together, reference.answers(PROMPTS))

    check_every_tier(own_site, reference, check_hits_at_once)
    own_site.wait_nothing_held()
    assert "Traceback" not in own_site.engine.log.split("skip_tokenizer_init=True`")[-1]


@pytest.mark.slow
def test_a_stock_engine_that_lets_the_server_copy(driven_site: DrivenSite, reference: Reference) -> None:
    def check_that_the_server_copied() -> None:
        moved = driven_site.server.status()["modules"]["lmcache_driven"]
        assert moved["stored_bytes"] > 0
        assert moved["retrieved_bytes"] > 0
        assert moved["transfers_failed"] == 0
        assert moved["registrations_refused"] == {}

    check_every_tier(driven_site, reference, check_that_the_server_copied)
