"""The stock engine's prompts of every length, and a new engine on an old disk."""

from __future__ import annotations

import pytest

from tests.engine.comparison import assert_cached, assert_right
from tests.engine.ladder import CHUNK_SIZES, PROMPTS, chunk_count
from tests.engine.prefix_hits import check_prefix_hits
from tests.engine.reference import Reference
from tests.engine.site import Site

pytestmark = pytest.mark.engine


@pytest.mark.slow
@pytest.mark.parametrize("site", [32], indirect=True)
def test_prefix_hits_of_one_chunk_to_256(site: Site, reference: Reference) -> None:
    check_prefix_hits(site, reference)


@pytest.mark.slow
@pytest.mark.parametrize("site", CHUNK_SIZES, indirect=True)
def test_a_new_engine_takes_from_disk_what_another_stored(site: Site, reference: Reference) -> None:
    site.engine.ask(PROMPTS)
    site.wait_stored(chunk_count(site.chunk_tokens))
    site.crash_server()
    with site.new_engine("new-engine") as engine:
        from_l2 = engine.ask(PROMPTS)
    assert_cached(from_l2, site.chunk_tokens)
    assert_right(from_l2, reference.answers(PROMPTS))
    site.wait_reconnected()
