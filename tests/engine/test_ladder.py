"""One engine's prompts through every tier: computed, from L1, and from L2 after the server was killed."""

from __future__ import annotations

import pytest

from demo.prompts import random_prompt
from tests.engine.comparison import assert_branch, assert_cached, assert_computed, assert_right
from tests.engine.ladder import CHUNK_SIZES, PROMPTS, SHARED_TOKENS, branch, chunk_count
from tests.engine.prefix_hits import check_prefix_hits
from tests.engine.reference import Reference
from tests.engine.site import ALLOWANCE_SECONDS, HEARTBEAT_SECONDS, Site

pytestmark = pytest.mark.engine


def check_branch(site: Site, reference: Reference, seed: int) -> None:
    """A prompt that shares its beginning with one of the ladder takes that beginning from the cache."""
    prompt = branch(seed)
    (answer,), (truth,) = site.engine.ask([prompt]), reference.answers([prompt])
    assert_branch(answer, truth, SHARED_TOKENS, site.chunk_tokens)


@pytest.mark.parametrize(
    "site", [size if size != 96 else pytest.param(size, marks=pytest.mark.slow) for size in CHUNK_SIZES], indirect=True
)
def test_the_same_answers_from_every_tier(site: Site, reference: Reference) -> None:
    truth = reference.answers(PROMPTS)
    stored_before = len(site.l2.objects())

    cold = site.engine.ask(PROMPTS)
    assert_computed(cold)
    assert_right(cold, truth)

    from_l1 = site.engine.ask(PROMPTS)
    assert_cached(from_l1, site.chunk_tokens)
    assert_right(from_l1, truth)
    check_branch(site, reference, seed=3)

    site.wait_stored(stored_before + chunk_count(site.chunk_tokens))
    site.crash_server()

    # The engine has not noticed yet: this must be answered all the same, right, and without waiting for a time-out.
    surprise = [random_prompt(2, 1_000)]
    at_once = site.engine.ask(surprise, timeout_seconds=HEARTBEAT_SECONDS + ALLOWANCE_SECONDS)
    assert_right(at_once, reference.answers(surprise))

    site.wait_reconnected()
    check_branch(site, reference, seed=4)
    from_l2 = site.engine.ask(PROMPTS)
    assert_cached(from_l2, site.chunk_tokens)
    assert_right(from_l2, truth)


@pytest.mark.parametrize("site", [32], indirect=True)
def test_prefix_hits_of_one_chunk_to_256(site: Site, reference: Reference) -> None:
    check_prefix_hits(site, reference)


@pytest.mark.parametrize(
    "site",
    [pytest.param(32, marks=pytest.mark.slow), pytest.param(96, marks=pytest.mark.slow), 256],
    indirect=True,
)
def test_a_new_engine_takes_from_disk_what_another_stored(site: Site, reference: Reference) -> None:
    site.engine.ask(PROMPTS)
    site.wait_stored(chunk_count(site.chunk_tokens))
    site.crash_server()
    with site.new_engine("new-engine") as engine:
        from_l2 = engine.ask(PROMPTS)
    assert_cached(from_l2, site.chunk_tokens)
    assert_right(from_l2, reference.answers(PROMPTS))
    site.wait_reconnected()
