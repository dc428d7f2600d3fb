"""SGLang with our linker, and our server: pages of 64 tokens are objects."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from demo.answer import Answer
from demo.child_process import ChildError
from demo.engine_process import ENGINE_PYTHON, MODEL, engine_environment
from demo.sglang_process import SglangProcess
from tests.engine.comparison import assert_cached, assert_computed, assert_right
from tests.engine.reference import Reference
from tests.engine.sglang_cases import HELD_SECONDS, MARKS, PATIENT, SglangCases, ask_at_random
from tests.engine.sglang_site import FILLER_TOKENS, SglangSite, prompt

pytestmark = MARKS

PAGE_TOKENS: Final = 64
PAGES: Final = len(prompt(0)) // PAGE_TOKENS
LOADING_SECONDS: Final = 120.0
SEGMENTS: Final = "/dev/shm/lmcache-l1-"
TIGHT: Final = ("--l1-size-gb", "0.009")
"""L1 has room for four of the random prompts or so."""


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    """SGLang without any cache of ours."""
    reference = Reference(SglangProcess(tmp_path_factory.mktemp("sglang-reference") / "engine.log", port=None))
    yield reference
    reference.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangSite]:
    site = SglangSite(tmp_path_factory.mktemp("linker-site"), unit_tokens=PAGE_TOKENS, linker=True, client=PATIENT)
    yield site
    site.close()


def mapped_segments() -> dict[int, set[str]]:
    """Names of servers' memory that processes have mapped, by process."""
    found = {}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # it has ended meanwhile
            if names := {line.rpartition("/")[2] for line in maps.read_text().splitlines() if SEGMENTS in line}:
                found[int(maps.parent.name)] = names
    return found


class TestLinker(SglangCases):
    unit_tokens = PAGE_TOKENS


def test_what_the_engine_has_pushed_out_comes_back_from_l1(site: SglangSite, truth: Reference) -> None:
    first, filler = prompt(101), prompt(102, FILLER_TOKENS)
    cold = site.stored(first)
    pushing = site.stored(filler)
    retrieved = site.retrieved()
    back = site.engine.ask([first])
    assert_computed([cold, pushing])
    assert back[0].cached_tokens > PAGE_TOKENS * (PAGES - 4), "but for what the engine itself still had"
    assert 2 <= site.retrieved() - retrieved <= PAGES
    assert not site.server.status()["requests"]["unhandled"]
    assert_right([cold, pushing, *back], truth.answers([first, filler, first]))
    site.wait_nothing_held()


def test_what_is_partly_in_the_engine_is_completed_by_the_server(site: SglangSite, truth: Reference) -> None:
    tokens = prompt(104)
    site.stored(tokens)
    site.engine.flush()
    site.engine.ask([tokens[:300]], max_tokens=1)
    retrieved = site.retrieved()
    answer = site.engine.ask([tokens])
    assert_cached(answer, PAGE_TOKENS)
    assert site.retrieved() - retrieved == PAGES - 300 // PAGE_TOKENS
    assert_right(answer, truth.answers([tokens]))
    site.wait_nothing_held()


def test_random_prefixes_evictions_and_aborts(site: SglangSite, truth: Reference) -> None:
    ask_at_random(site, truth, 72, 12)


@pytest.mark.slow
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("requests", [1_000])
def test_many_requests_while_l1_is_full(tmp_path: Path, truth: Reference, requests: int) -> None:
    site = SglangSite(tmp_path, TIGHT, unit_tokens=PAGE_TOKENS, linker=True, client=PATIENT)
    try:
        ask_at_random(site, truth, requests, 48)
        assert site.server.status()["l1"]["evicted"] > requests
    finally:
        site.close()


def test_two_engines_share_and_a_crash_leaves_the_disk(site: SglangSite, truth: Reference) -> None:
    tokens = prompt(130)
    site.stored(tokens)
    with site.another("second", client=PATIENT, linker=True) as second:
        shared = second.ask([tokens])
    assert_cached(shared, PAGE_TOKENS)

    site.crash_server()
    site.wait_registered()
    found = site.ask_anew(tokens)
    assert_cached([found], PAGE_TOKENS)
    assert site.server.status()["chunks"]["loaded_from_l2"] == PAGES
    assert_right([*shared, found], truth.answers([tokens, tokens]))
    site.wait_nothing_held()


def test_a_frozen_server_delays_a_request_by_one_lookup(site: SglangSite, truth: Reference) -> None:
    tokens = prompt(131)
    site.stored(tokens)
    site.engine.flush()
    site.server.pause()
    begin = time.monotonic()
    computed = [site.engine.ask([tokens])[0] for _ in range(2)]
    seconds = time.monotonic() - begin
    site.server.resume()
    assert computed[0].cached_tokens == 0
    assert seconds < 45, "a lookup of 5 s, and two answers on a busy machine"
    assert_right(computed, truth.answers([tokens, tokens]))
    site.wait_nothing_held(HELD_SECONDS)


def test_a_server_that_is_killed_within_a_load_aborts_that_request_alone(site: SglangSite, truth: Reference) -> None:
    tokens, other = prompt(134), prompt(135, 500)
    site.stored(tokens)
    slow = site.another("slow", client={**PATIENT, "timeout_seconds": 2}, linker="tests.engine.sglang_slow_linker")
    with slow as engine, ThreadPoolExecutor(1) as asking:
        asked = asking.submit(engine.outcomes, [tokens, other])
        deadline = time.monotonic() + LOADING_SECONDS
        while not site.held()["reads_prepared"]:
            assert time.monotonic() < deadline
        site.server.kill()
        aborted, computed = asked.result()
        assert "abort" in str(aborted).lower()
        assert isinstance(computed, Answer)
        assert "a load failed" in engine.log

        site.server.start()
        site.wait_registered(2)
        engine.flush()
        again = engine.ask([tokens])
    assert_cached(again, PAGE_TOKENS)
    assert_right([computed, *again], truth.answers([other, tokens]))
    site.wait_nothing_held()


def test_a_server_that_comes_later_is_found(site: SglangSite, truth: Reference) -> None:
    tokens = prompt(132)
    site.server.stop()
    with site.another("early", client={**PATIENT, "timeout_seconds": 2}, linker=True) as early:
        alone = early.ask([tokens])
        back = threading.Thread(target=site.server.start)
        back.start()
        back.join()
        site.wait_registered(2)
        early.flush()
        early.ask([tokens])
        site.server.wait_written(60)
        early.flush()
        found = early.ask([tokens])
    assert_computed(alone)
    assert_cached(found, PAGE_TOKENS)
    assert_right([*alone, *found], truth.answers([tokens, tokens]))


def test_weights_that_change_end_the_use_of_the_cache(site: SglangSite, truth: Reference, tmp_path: Path) -> None:
    """SGLang empties its own cache, and pages of the old weights would be found in the server again."""
    tokens, config, other = prompt(136), MODEL / "config.json", tmp_path / "trained"
    subprocess.run(
        [str(ENGINE_PYTHON), "demo/make_model.py", str(config), str(other), "--seed", "1"],
        env=engine_environment(1),
        check=True,
        capture_output=True,
    )
    with SglangProcess(tmp_path / "trained.log", port=None, model=other) as trained:
        right = trained.ask([tokens])
    before = site.stored(tokens)
    with site.another("training", client=PATIENT, linker=True) as engine:
        hit = engine.ask([tokens])
        stored = site.server.status()["chunks"]["stored"]
        engine.update(other)
        after = engine.ask([tokens, prompt(137)])
        site.server.wait_written(60)
        assert "the weights of this engine change" in engine.log
    assert_cached(hit, PAGE_TOKENS)
    assert_right([before, *hit], truth.answers([tokens] * 2))
    assert_computed(after)
    assert_right(after[:1], right)
    assert site.server.status()["chunks"]["stored"] == stored
    site.wait_nothing_held()


@pytest.mark.parametrize(
    ("client", "page_size", "said"),
    [
        ({"lookup_timeout": 5}, 64, "did you mean 'lookup_timeout_ms'"),
        ({"min_load_pages": 0}, 64, "min_load_pages is 0; it must be above 0"),
        ({}, 8, "choose 16 or more"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_the_start(
    tmp_path: Path, client: dict[str, int], page_size: int, said: str
) -> None:
    engine = SglangProcess(tmp_path / "engine.log", port=1, linker=True, client=client, page_size=page_size)
    with pytest.raises(ChildError, match="SGLang ended"):
        engine.start()
    assert said in engine.log
    engine.kill()


@pytest.mark.alone
@pytest.mark.slow
def test_tensor_parallel(site: SglangSite) -> None:
    """Each rank has pages of its own, and a hit needs both.  L1 is memory that all ranks share."""
    tokens, before = prompt(133), mapped_segments()
    segment = site.server.status()["l1"]["segment"].removeprefix("/")
    with site.another("two-ranks", tensor_parallel=2, linker=True, client=PATIENT) as engine:
        cold = engine.ask([tokens])
        site.server.wait_written(60)
        engine.flush()
        back = engine.ask([tokens])
        ranks = [names for pid, names in mapped_segments().items() if segment in names and pid not in before]
    assert ranks == [{segment}] * 2
    assert_computed(cold)
    assert_cached(back, PAGE_TOKENS)
    assert_right(back, cold)
    site.wait_nothing_held()
