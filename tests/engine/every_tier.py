"""The same prompts through every tier: computed, from L1, and from L2 after the server was killed."""

from __future__ import annotations

from collections.abc import Callable

from demo.prompts import random_prompt
from tests.engine.comparison import assert_branch, assert_cached, assert_computed, assert_right
from tests.engine.ladder import PROMPTS, SHARED_TOKENS, branch, chunk_count
from tests.engine.reference import Reference
from tests.engine.site import ALLOWANCE_SECONDS, HEARTBEAT_SECONDS, Site


def check_every_tier(site: Site, reference: Reference, while_in_l1: Callable[[], None] = lambda: None) -> None:
    """`while_in_l1` is called when all prompts are there and the server was not killed yet."""
    truth = reference.answers(PROMPTS)
    stored_before = len(site.l2.objects())

    cold = site.engine.ask(PROMPTS)
    assert_computed(cold)
    assert_right(cold, truth)

    from_l1 = site.engine.ask(PROMPTS)
    assert_cached(from_l1, site.chunk_tokens)
    assert_right(from_l1, truth)
    _check_branch(site, reference, seed=3)
    while_in_l1()

    site.wait_stored(stored_before + chunk_count(site.chunk_tokens))
    site.crash_server()

    # The engine has not noticed yet: this must be answered all the same, right, and without waiting for a time-out.
    surprise = [random_prompt(2, 1_000)]
    at_once = site.engine.ask(surprise, timeout_seconds=HEARTBEAT_SECONDS + ALLOWANCE_SECONDS)
    assert_right(at_once, reference.answers(surprise))

    site.wait_reconnected()
    _check_branch(site, reference, seed=4)
    from_l2 = site.engine.ask(PROMPTS)
    assert_cached(from_l2, site.chunk_tokens)
    assert_right(from_l2, truth)


def _check_branch(site: Site, reference: Reference, seed: int) -> None:
    """A prompt that shares its beginning with one of the ladder takes that beginning from the cache."""
    prompt = branch(seed)
    (answer,), (truth,) = site.engine.ask([prompt]), reference.answers([prompt])
    assert_branch(answer, truth, SHARED_TOKENS, site.chunk_tokens)
