"""SGLang as its users get it, `--enable-lmcache` with the public client, and our server.

SGLang reports tokens of its own cache and of the server as one number.  So a hit of the server shows only where SGLang's cache
has lost them: pushed out by another prompt, or emptied.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from demo.cache_rule import cached_tokens
from demo.child_process import ChildError
from demo.engine_process import MODEL, RequestError
from demo.sglang_process import SglangProcess
from tests.engine.comparison import assert_cached, assert_computed, assert_right
from tests.engine.reference import Reference
from tests.engine.sglang_cases import MARKS, SglangCases
from tests.engine.sglang_site import CHUNK_TOKENS, CHUNKS, FILLER_TOKENS, SglangSite, prompt

pytestmark = MARKS

AWAY_SECONDS: Final = 6.0
"""How long a server is away or stopped: more than a heartbeat of the engine."""


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    """SGLang without any cache of ours."""
    reference = Reference(SglangProcess(tmp_path_factory.mktemp("sglang-reference") / "engine.log", port=None))
    yield reference
    reference.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangSite]:
    site = SglangSite(tmp_path_factory.mktemp("sglang-site"))
    yield site
    site.close()


class TestStock(SglangCases):
    unit_tokens = CHUNK_TOKENS

    def test_tenants_do_not_hit_each_others_prompts(self, site: SglangSite, truth: Reference) -> None:
        super().test_tenants_do_not_hit_each_others_prompts(site, truth)
        salts = {tenant["cache_salt"] for tenant in site.server.status()["tenants"]}
        assert {"_default", "one", "two"} < salts
        assert len(salts - {"_default", "one", "two"}) == 2, "an extra key is a salt of its own: a hash"


def test_what_the_engine_has_pushed_out_comes_back_from_l1(site: SglangSite, truth: Reference) -> None:
    first, filler = prompt(1), prompt(2, FILLER_TOKENS)
    cold = site.stored(first)
    pushing = site.stored(filler)
    retrieved = site.retrieved()
    back = site.engine.ask([first])
    assert_computed([cold, pushing])
    assert_cached(back, CHUNK_TOKENS)
    assert site.retrieved() - retrieved == CHUNKS
    assert not site.server.status()["requests"]["unhandled"]
    assert_right([cold, pushing, *back], truth.answers([first, filler, first]))
    site.wait_nothing_held()


def test_a_prompt_that_begins_alike_hits_what_they_share(site: SglangSite, truth: Reference) -> None:
    shared = prompt(4)
    site.stored(shared)
    branch = shared[:700] + prompt(5, 400)
    answer = site.ask_anew(branch)
    assert answer.cached_tokens == 512
    assert_right([answer], truth.answers([branch]))


def test_what_is_partly_in_the_engine_is_completed_by_the_server(site: SglangSite, truth: Reference) -> None:
    tokens = prompt(6)
    site.stored(tokens)
    site.engine.flush()
    site.engine.ask([tokens[:300]], max_tokens=1)  # the engine has four pages and a bit of it
    answer = site.engine.ask([tokens])
    assert_cached(answer, CHUNK_TOKENS)
    assert_right(answer, truth.answers([tokens]))
    site.wait_nothing_held()


def test_a_tenant_at_its_quota_is_stored_in_part(tmp_path: Path, truth: Reference) -> None:
    options = ("--eviction-policy", "IsolatedLRU", "--quota", '{"small": 0.002}')
    site = SglangSite(tmp_path, ("--l1-size-gb", "1", *options))
    try:
        tokens = prompt(8)
        site.engine.ask_for(tokens, cache_salt="small")
        site.engine.flush()
        answer = site.engine.ask_for(tokens, cache_salt="small")
        assert 0 < answer.cached_tokens < cached_tokens(len(tokens), CHUNK_TOKENS)
        assert_right([answer], truth.answers([tokens]))
        (quota,) = site.server.status()["quotas"]["largest"]
        assert quota["cache_salt"] == "small"
        site.wait_nothing_held()
    finally:
        site.close()


def test_a_frozen_server_delays_and_changes_nothing(site: SglangSite, truth: Reference) -> None:
    tokens = prompt(10)
    site.stored(tokens)
    site.engine.flush()
    site.server.pause()
    resumed = threading.Timer(AWAY_SECONDS, site.server.resume)
    resumed.start()
    with pytest.raises(RequestError, match="Abort"):
        site.engine.ask_for(tokens, abort_after=1)
    begin = time.monotonic()
    answer = site.engine.ask([tokens])
    waited = time.monotonic() - begin
    resumed.join()
    assert waited > AWAY_SECONDS / 2
    assert_right(answer, truth.answers([tokens]))
    site.wait_nothing_held()


def test_an_overfull_server_is_right(tmp_path: Path, truth: Reference) -> None:
    """L1 has room for eight chunks, and each prompt has five."""
    site = SglangSite(tmp_path, ("--l1-size-gb", "0.009"))
    try:
        prompts = [prompt(11 + number) for number in range(3)]
        answers = [*site.engine.ask(prompts), *site.engine.ask(prompts)]
        assert_right(answers, truth.answers(prompts * 2))
        assert site.server.status()["l1"]["evicted"]
        site.wait_nothing_held()
    finally:
        site.close()


def test_two_engines_share_and_a_crash_leaves_the_disk(site: SglangSite, truth: Reference) -> None:
    """An engine of SGLang registers once, when it starts: with a new server it computes, until it is started again."""
    tokens, later = prompt(15), prompt(16)
    site.stored(tokens)
    with site.another("second") as second:
        shared = second.ask([tokens])
    assert_cached(shared, CHUNK_TOKENS)

    site.crash_server()
    orphaned = [site.ask_anew(tokens), site.ask_anew(later), site.ask_anew(later)]
    assert_computed(orphaned)
    site.restart_engine()
    from_disk = site.engine.ask([tokens])
    assert_cached(from_disk, CHUNK_TOKENS)
    assert site.server.status()["chunks"]["loaded_from_l2"] == CHUNKS
    assert_right([*shared, *orphaned, *from_disk], truth.answers([tokens, tokens, later, later, tokens]))
    site.wait_nothing_held()


def test_a_request_waits_for_a_server_that_is_away(site: SglangSite, truth: Reference) -> None:
    """It has no time limit for that; the answer is right when the server is back."""
    tokens = prompt(17)
    site.stored(tokens)
    site.engine.flush()
    site.server.kill()
    back = threading.Timer(AWAY_SECONDS, site.server.start)
    back.start()
    with pytest.raises(RequestError, match="Abort"):
        site.engine.ask_for(tokens, abort_after=1)
    answer = site.engine.ask([tokens])
    back.join()
    site.restart_engine()
    again = site.engine.ask([tokens])
    assert_cached(again, CHUNK_TOKENS)
    assert_right([*answer, *again], truth.answers([tokens, tokens]))


def test_an_engine_that_starts_waits_for_the_server(site: SglangSite) -> None:
    site.server.stop()
    patient = site.another("patient")
    patient.launch()
    time.sleep(AWAY_SECONDS)
    site.server.start()
    patient.wait_ready()
    patient.kill()

    site.server.stop()
    impatient = site.another("impatient", client={"lmcache.mp.mq_timeout": 2})
    with pytest.raises(ChildError, match="SGLang ended"):
        impatient.start()
    impatient.kill()
    site.server.start()
    site.restart_engine()


@pytest.mark.parametrize("page_size", [1, 16])
def test_pages_of_another_size(site: SglangSite, truth: Reference, tmp_path: Path, page_size: int) -> None:
    """Under a name of its own: a killed engine counts until it was silent for a while, and another size is other objects."""
    tokens = prompt(20)
    model = tmp_path / "model"
    model.symlink_to(MODEL)
    with site.another(f"pages-of-{page_size}", page_size=page_size, model=model) as engine:
        cold = engine.ask([tokens])
        engine.flush()
        back = engine.ask([tokens])
    assert_computed(cold)
    assert_cached(back, CHUNK_TOKENS)
    assert_right([*cold, *back], truth.answers([tokens, tokens]))


def test_a_chunk_of_no_whole_pages_is_refused(site: SglangSite) -> None:
    engine = site.another("pages-of-48", page_size=48, options={"chunked_prefill_size": 48 * 80})
    with pytest.raises(ChildError, match="LMCache chunk size 256 must be a positive multiple"):
        engine.start()
    engine.kill()


@pytest.mark.alone
@pytest.mark.slow
def test_tensor_parallel(site: SglangSite) -> None:
    """Two schedulers, and gloo between them: each chunk is two objects, and a hit needs both."""
    tokens = prompt(19)
    with site.another("two-ranks", tensor_parallel=2) as engine:
        cold = engine.ask([tokens])
        engine.flush()
        back = engine.ask([tokens])
        assert {worker["world_size"] for worker in site.server.status()["workers"]} == {1, 2}
    assert_computed(cold)
    assert_cached(back, CHUNK_TOKENS)
    assert_right(back, cold)
    site.wait_nothing_held()
