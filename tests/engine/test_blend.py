"""Requests that blend in a real engine: what must be exact is exact, and planted faults are seen."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from demo.answer import Answer
from demo.child_process import ChildError
from demo.engine_process import ENGINE_PYTHON, EngineProcess, RequestError
from demo.environment import quiet_environment
from demo.l2_folder import L2Folder
from demo.prompts import random_prompt
from demo.server_process import ServerProcess
from tests.engine.comparison import assert_right
from tests.engine.reference import Reference
from tests.engine.site import HEARTBEAT_SECONDS, SPINNING_WORKERS
from tests.thirdparty.clean_environment import build_wheels

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

DRIVER = Path(__file__).with_name("blend_driver.py")
CHUNK_TOKENS = 64
DOCUMENTS = [random_prompt(900 + number, tokens) for number, tokens in enumerate((128, 192, 64))]
DOCUMENT_TOKENS = sum(map(len, DOCUMENTS))
STORED_SECONDS = 30.0
BLENDS: Mapping[str, Any] = {
    "lmcache.blend": "all",
    "lmcache.blend_min_tokens": 64,
    "lmcache.blend_check_layers": [0, 1],
    "lmcache.blend_recompute_ratios": [1.0, 1.0],
    # K of the first layer depends on a token and its position alone: moved rightly, no token is above this there. Those that
    # are, are all computed.
    "lmcache.blend_thresholds": [1e-3, 0.0],
}
ALL_COMPUTED = {"lmcache.blend_selector": "full"}
NONE_COMPUTED = {"lmcache.blend_recompute_ratios": [0.0, 0.0]}


SELECTORS = {
    "pyproject.toml": """
[build-system]
requires = ["hatchling>=1.25"]
build-backend = "hatchling.build"

[project]
name = "acme-selectors"
version = "1.0"

[project.entry-points."lmcache.blend_selectors.v1"]
acme = "acme_selectors:EVERY_ELEVENTH"

[tool.hatch.build.targets.wheel]
only-include = ["acme_selectors.py"]
""",
    "acme_selectors.py": """
from lmcache_blend_select import Selector, runs_of

EVERY_ELEVENTH = Selector(lambda facts: runs_of(facts.positions()[::11]))
""",
}


def prompt(seed: int, order: Sequence[int] = (2, 0, 1)) -> list[int]:
    """The documents in this order, each at a place of its own, among tokens that no other prompt has."""
    found = random_prompt(seed, 40 + seed % 20)
    for number in order:
        found = found + DOCUMENTS[number] + random_prompt(seed + 1000 * (number + 1), 3 + number)
    return found + random_prompt(seed + 5000, 24)


class BlendSite:
    """A server, and an engine that has stored each document alone."""

    def __init__(self, folder: Path, *, l2: L2Folder | None = None, **engine: Any) -> None:
        self._control = folder / "control.json"
        self.control(**engine.pop("control", {}))
        options = ["--l1-size-gb", "1", "--chunk-size", str(CHUNK_TOKENS), "--engine-type", "blend"]
        self.server = ServerProcess([*options, *(l2.adapter_option() if l2 else ())], folder / "server.log")
        self.server.start()
        extra = {"lmcache.heartbeat_seconds": HEARTBEAT_SECONDS, "lmcache.lookup_timeout_ms": 5_000, **BLENDS}
        own: dict[str, Any] = {"extra": extra, "one_process": True} | engine
        arguments = [str(self._control), "--max-num-seqs", "64", "--max-model-len", "4096"]
        log = folder / "engine.log"
        self.engine = EngineProcess(
            log, port=self.server.port, connector="own", driver=DRIVER, options=arguments, **own
        )
        try:
            self.engine.start()
            for document in DOCUMENTS:
                self.engine.ask([[*document, 5]], max_tokens=1)
            self.wait_indexed(DOCUMENT_TOKENS // CHUNK_TOKENS)
        except BaseException:
            self.close()
            raise

    def wait_indexed(self, chunks: int) -> None:
        """An answer waits neither for what is stored of its prompt nor for the index."""
        deadline = time.monotonic() + STORED_SECONDS
        while (added := self.server.status()["modules"]["blend"]["chunks_added"]) < chunks:
            assert time.monotonic() < deadline, f"{added} of {chunks} chunks are indexed"
            time.sleep(0.02)

    def control(self, **values: Any) -> None:
        self._control.write_text(json.dumps(values))

    def ask(self, tokens: Sequence[int], params: Mapping[str, Any]) -> Answer:
        return self.engine.ask_with(tokens, {"lmcache.blend": True, **params})

    def close(self) -> None:
        self.engine.stop()  # in an orderly way, so that its workers take along what they share
        self.server.stop()


def counts(answer: Answer) -> tuple[int, int]:
    """Tokens that were reused, and computed again."""
    assert answer.kv_transfer_params is not None
    blend = answer.kv_transfer_params["lmcache.blend"]
    assert "reused_tokens" in blend, f"it was not blended: {blend}"
    return blend["reused_tokens"], blend["recomputed_tokens"]


def kept(answer: Answer) -> int:
    """Tokens that were taken as an earlier turn has left them."""
    assert answer.kv_transfer_params is not None
    tokens: int = answer.kv_transfer_params["lmcache.blend"]["kept_tokens"]
    return tokens


def assert_exact(site: BlendSite, reference: Reference, seed: int, params: Mapping[str, Any] = ALL_COMPUTED) -> None:
    """Everything is computed over loaded documents, and the answer is that without a cache."""
    answer = site.ask(prompt(seed), params)
    assert counts(answer) == (0, DOCUMENT_TOKENS)
    assert_right([answer], reference.answers([prompt(seed)]))


@pytest.fixture(scope="module")
def site(engine_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlendSite]:
    site = BlendSite(tmp_path_factory.mktemp("blend"))
    yield site
    site.close()


def test_what_is_computed_again_is_exact_and_faults_are_seen(site: BlendSite, reference: Reference) -> None:
    site.control()
    assert_exact(site, reference, 1)
    assert_exact(site, reference, 2, {"lmcache.blend_selector": "cacheblend"})
    assert "passes that begin at layer 'model.layers.1.self_attn.attn' differ by" in site.engine.log
    assert "passes begin at the first layer" not in site.engine.log
    assert counts(site.ask(prompt(3), NONE_COMPUTED)) == (DOCUMENT_TOKENS, 0)
    for seed, fault in enumerate(("unturned", "swapped"), 4):
        site.control(fault=fault)
        reused, computed = counts(site.ask(prompt(seed), NONE_COMPUTED))
        assert computed > reused, f"{fault} segments pass for right ones"


@pytest.mark.slow
@pytest.mark.parametrize("row_tokens", [16, 1])
def test_rows_of_16_and_of_single_tokens_are_exact(site: BlendSite, reference: Reference, row_tokens: int) -> None:
    site.control(row_tokens=row_tokens)
    assert_exact(site, reference, 100 + row_tokens)


@pytest.mark.slow
def test_the_question_is_part_of_a_blend_whose_selector_asks_for_its_attention(
    site: BlendSite, reference: Reference
) -> None:
    site.control(step_tokens=100)
    assert_exact(site, reference, 150, {"lmcache.blend_selector": "question"})
    some = {"lmcache.blend_selector": "question", "lmcache.blend_recompute_ratios": [0.25, 0.0]}
    assert counts(site.ask(prompt(151), some)) == (DOCUMENT_TOKENS - DOCUMENT_TOKENS // 4, DOCUMENT_TOKENS // 4)


@pytest.mark.slow
@pytest.mark.parametrize("step_tokens", [100, 16, 1])
def test_slices_over_steps_are_exact(site: BlendSite, reference: Reference, step_tokens: int) -> None:
    site.control(step_tokens=step_tokens)
    assert_exact(site, reference, 200 + step_tokens, {"lmcache.blend_selector": "cacheblend"})


@pytest.mark.slow
def test_four_at_once_beside_others_that_are_prefilled_in_chunks_and_decoded(
    engine_environment: None, reference: Reference, tmp_path: Path
) -> None:
    asked = [prompt(seed, order) for seed, order in enumerate(((0, 1, 2), (2, 1, 0), (1, 2, 0), (1, 0, 2)), 300)]
    others = [random_prompt(seed, 1_500) for seed in (310, 311)]
    truth = reference.answers([*others, *asked])
    site = BlendSite(tmp_path, control={"vllm": {"max_num_batched_tokens": 256}})
    try:
        site.control(step_tokens=100)
        answers = site.engine.ask_together([*others, *asked])
        assert_right(answers, truth)
        for answer in answers[len(others) :]:
            assert counts(answer) == (0, DOCUMENT_TOKENS)
    finally:
        site.close()


@pytest.mark.slow
def test_a_chunk_behind_a_hole_in_its_own_prefix_is_exact(
    engine_environment: None, reference: Reference, tmp_path: Path
) -> None:
    """The prompt's first chunk is lost, and those behind it are used as they are."""
    l2 = L2Folder(tmp_path / "l2")
    l2.path.mkdir()
    tokens = random_prompt(400, 5 * CHUNK_TOKENS)
    asked = tokens + random_prompt(401, 20)
    site = BlendSite(tmp_path, l2=l2)
    try:
        l2.wait_for_objects(DOCUMENT_TOKENS // CHUNK_TOKENS, STORED_SECONDS)
        before = set(l2.objects())
        site.engine.ask([tokens[: CHUNK_TOKENS + 1]], max_tokens=1)
        l2.wait_for_objects(len(before) + 1, STORED_SECONDS)
        (first,) = set(l2.objects()) - before
        site.engine.ask([[*tokens, 5]], max_tokens=1)
        l2.wait_for_objects(len(before) + 5, STORED_SECONDS)
        site.server.wait_written(STORED_SECONDS)
        site.server.stop()
        first.unlink()
        site.server.start()
        site.engine.ask_until_cached(random_prompt(402, CHUNK_TOKENS + 1), timeout_seconds=STORED_SECONDS)
        answer = site.ask(asked, NONE_COMPUTED)
        assert counts(answer) == (4 * CHUNK_TOKENS, 0)
        assert_right([answer], reference.answers([asked]))
    finally:
        site.close()


@pytest.mark.alone
@pytest.mark.slow
def test_a_second_turn_takes_what_the_first_one_has_left_and_no_other_request_does(
    engine_environment: None, reference: Reference, tmp_path: Path
) -> None:
    """The same turn once more computes nothing but its first chunk and its end, over the same KV: its answer is the same."""
    turns = [prompt(900), prompt(900) + random_prompt(901, 200)]
    left = [len(turn) // CHUNK_TOKENS - 1 for turn in turns]
    site = BlendSite(tmp_path, extra={**BLENDS, "lmcache.blend_keep": True})
    try:
        assert kept(site.ask(turns[0], NONE_COMPUTED)) == 0
        site.wait_indexed(DOCUMENT_TOKENS // CHUNK_TOKENS + left[0])
        second = site.ask(turns[1], NONE_COMPUTED)
        assert kept(second) == left[0] * CHUNK_TOKENS
        site.wait_indexed(DOCUMENT_TOKENS // CHUNK_TOKENS + left[1])
        again = site.ask(turns[1], NONE_COMPUTED)
        assert kept(again) == counts(again)[0] == left[1] * CHUNK_TOKENS
        assert again.says_the_same_as(second)
        site.control(fault="repeated")  # swapped, they would be the same keys for what is behind them
        assert not site.ask(turns[1], NONE_COMPUTED).says_the_same_as(second), "other chunks pass for right ones"
        site.control()
        exact = site.engine.ask_with(turns[1], {"lmcache.blend": False})
        assert exact.cached_tokens == CHUNK_TOKENS, "what the second turn has computed with nothing before it"
        assert_right([exact], reference.answers([turns[1]]))
        assert not exact.says_the_same_as(second), "nothing was approximate here"
    finally:
        site.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_workers_choose_alike_and_are_exact(engine_environment: None, reference: Reference, tmp_path: Path) -> None:
    extra = {**BLENDS, **SPINNING_WORKERS}
    site = BlendSite(tmp_path, extra=extra, one_process=False, tensor_parallel=2)
    try:
        assert_exact(site, reference, 500, {"lmcache.blend_selector": "cacheblend"})
        assert counts(site.ask(prompt(501), NONE_COMPUTED)) == (DOCUMENT_TOKENS, 0)
        # At the first layer there is only rounding to choose by; all that were chosen there deviate at the second.
        some = counts(site.ask(prompt(502), {"lmcache.blend_recompute_ratios": [0.25, 0.0]}))
        assert some == (DOCUMENT_TOKENS - DOCUMENT_TOKENS // 4, DOCUMENT_TOKENS // 4)
        site.control(fault="rank")
        with pytest.raises(RequestError, match="EngineDeadError"):
            site.ask(prompt(503), ALL_COMPUTED)
        assert "a pass of a blend failed on rank 1 alone, and the other workers wait for it" in site.engine.log
    finally:
        site.close()


@pytest.mark.slow
def test_a_wrong_rotation_turns_blending_off_and_answers_stay_right(
    engine_environment: None, reference: Reference, tmp_path: Path
) -> None:
    site = BlendSite(tmp_path, control={"fault": "base"})
    try:
        assert "blending is off: K of layer 'model.layers.0.self_attn.attn'" in site.engine.log
        answer = site.ask(prompt(600), NONE_COMPUTED)
        assert answer.kv_transfer_params == {"lmcache.blend": {"not_blended": "off"}}
        assert_right([answer], reference.answers([prompt(600)]))
    finally:
        site.close()


@pytest.mark.slow
def test_passes_that_fail_leave_right_answers_and_turn_blending_off(
    engine_environment: None, reference: Reference, tmp_path: Path
) -> None:
    """In an engine that could have adapters, which its passes are without."""
    site = BlendSite(tmp_path, control={"vllm": {"enable_lora": True, "max_lora_rank": 8, "max_loras": 1}})
    try:
        assert_exact(site, reference, 700)
        site.control(fault="pass")
        said = []
        for seed in range(701, 705):
            answer = site.engine.ask([prompt(seed)])[0]
            assert_right([answer], reference.answers([prompt(seed)]))
            said.append((answer.kv_transfer_params or {}).get("lmcache.blend"))
        assert said == [None] * 4, "not one of them asked itself to be blended"
        assert site.engine.log.count("a pass of a blend failed") == 3
        assert "3 blends in a row failed" in site.engine.log
    finally:
        site.close()


@pytest.fixture(scope="module")
def installed(engine_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that pip has installed another party's distribution into, from its wheel."""
    source, built, folder = (tmp_path_factory.mktemp(name) for name in ("source", "built", "installed"))
    for name, text in SELECTORS.items():
        (source / name).write_text(text)
    options = ("-q", "--disable-pip-version-check", "--no-index", "--no-deps", "--target", folder)
    command = [ENGINE_PYTHON, "-m", "pip", "install", *options, *build_wheels(built, source)]
    subprocess.run(list(map(str, command)), check=True, env=quiet_environment(), timeout=300)
    return folder


@pytest.mark.slow
def test_a_selector_of_another_distribution_chooses(installed: Path, tmp_path: Path) -> None:
    """As many tokens as none of ours would."""
    extra = {**BLENDS, "lmcache.blend_selector": "acme", "lmcache.blend_recompute_ratios": [0.25, 0.25]}
    site = BlendSite(tmp_path, control={"installed": str(installed)}, extra=extra)
    try:
        for params, name, computed in (
            ({}, "acme", -(-DOCUMENT_TOKENS // 11)),
            ({"lmcache.blend_selector": "lego_link"}, "lego_link", 16 * len(DOCUMENTS)),
        ):
            answer = site.ask(prompt(800 + computed), params)
            assert counts(answer) == (DOCUMENT_TOKENS - computed, computed)
            assert answer.kv_transfer_params is not None
            assert answer.kv_transfer_params["lmcache.blend"]["selector"] == name
    finally:
        site.close()


@pytest.mark.slow
def test_a_selector_that_is_not_installed_stops_the_start(installed: Path, tmp_path: Path) -> None:
    extra = {**BLENDS, "lmcache.blend_selector": "acne"}
    with pytest.raises(ChildError):
        BlendSite(tmp_path, control={"installed": str(installed)}, extra=extra)
    said = (
        "'lmcache.blend_selector': no blend selector is called 'acne'; installed: acme, block_start, cacheblend, full,"
    )
    assert said in (tmp_path / "engine.log").read_text()
