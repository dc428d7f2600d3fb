"""Two engines share one server: what one computed the other takes, and the death of one is not felt by the other."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from demo.child_process import ChildError
from demo.engine_process import EngineProcess
from demo.prompts import random_prompt
from tests.engine.comparison import assert_cached, assert_computed, assert_right
from tests.engine.reference import Reference
from tests.engine.site import Site

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.parametrize("site", [256], indirect=True)]

LENGTHS = [500, 1_500, 3_000]


@pytest.fixture(scope="module")
def second(site: Site) -> Iterator[EngineProcess]:
    engine = site.new_engine("second-engine")
    with engine:
        yield engine


def test_one_engine_takes_what_the_other_stored(site: Site, second: EngineProcess, reference: Reference) -> None:
    prompts = [random_prompt(21, length) for length in LENGTHS]
    truth = reference.answers(prompts)
    stored = site.engine.ask(prompts)
    assert_computed(stored)
    taken = second.ask(prompts)
    assert_cached(taken, site.chunk_tokens)
    assert_right(stored + taken, truth + truth)


def test_both_at_once(site: Site, second: EngineProcess, reference: Reference) -> None:
    """Each engine has prompts of its own and some that the other asks at the same moment; then all of them again."""
    shared = [random_prompt(22, length) for length in LENGTHS]
    mine, theirs = [[random_prompt(seed, length) for length in LENGTHS] for seed in (23, 24)]
    truth = reference.answers(shared + mine + theirs)
    of = dict(zip(map(tuple, shared + mine + theirs), truth, strict=True))
    with ThreadPoolExecutor(2) as pool:
        for round_is_cold in (True, False):
            first_asks = pool.submit(site.engine.ask_together, shared + mine)
            second_asks = pool.submit(second.ask_together, theirs + shared)
            answers = first_asks.result(120) + second_asks.result(120)
            assert_right(answers, [of[tuple(prompt)] for prompt in [*shared, *mine, *theirs, *shared]])
            if not round_is_cold:
                assert_cached(answers, site.chunk_tokens)


def test_the_death_of_one_is_not_felt_by_the_other(site: Site, second: EngineProcess, reference: Reference) -> None:
    """Killed in the middle of storing; runs last, because the second engine is gone afterwards."""
    prompts = [random_prompt(25, length) for length in LENGTHS]
    truth = reference.answers(prompts)
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(second.ask, [random_prompt(seed, 8_000) for seed in range(26, 36)])
        site.l2.wait_for_objects(len(site.l2.objects()) + 20, timeout_seconds=60)
        second.kill()
        with pytest.raises(ChildError):
            busy.result(60)
    assert_right(site.engine.ask(prompts), truth)
    again = site.engine.ask(prompts)
    assert_cached(again, site.chunk_tokens)
    assert_right(again, truth)
    assert site.server.answers_ping(timeout_seconds=5)
