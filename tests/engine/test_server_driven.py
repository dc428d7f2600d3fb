"""A stock engine on the CPU that lets the server copy: what was stored one way is found the other, and hits of every length."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo.prompts import random_prompt
from tests.engine.comparison import assert_cached, assert_computed, assert_right
from tests.engine.prefix_hits import check_prefix_hits
from tests.engine.reference import Reference
from tests.engine.site import CHUNK_TOKENS, ROOMY, DrivenSite, Site

pytestmark = pytest.mark.engine


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


@pytest.mark.slow
@pytest.mark.parametrize("engine_type", ["blend", "blend_legacy"])
def test_where_other_engines_blend_a_stock_one_is_served_as_before(
    engine_environment: None, reference: Reference, tmp_path: Path, engine_type: str
) -> None:
    site = DrivenSite(CHUNK_TOKENS, tmp_path, [*ROOMY, "--engine-type", engine_type])
    try:
        prompts = [random_prompt(seed, 2_000) for seed in (21, 22)]
        assert_computed(site.engine.ask(prompts))
        answers = site.engine.ask(prompts)
        assert_cached(answers, CHUNK_TOKENS)
        assert_right(answers, reference.answers(prompts))
        site.wait_nothing_held()
        assert engine_type in site.server.status()["modules"]
    finally:
        site.close()
