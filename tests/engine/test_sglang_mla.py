"""SGLang with a DeepSeek: its pages are one latent row per token, of which all ranks have the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from demo.sglang_process import SglangProcess
from tests.engine.architectures import Architecture
from tests.engine.comparison import assert_cached, assert_computed, assert_right
from tests.engine.reference import Reference
from tests.engine.sglang_cases import MARKS, PATIENT
from tests.engine.sglang_site import CHUNK_TOKENS, SglangSite, prompt

pytestmark = MARKS

PAGE_TOKENS: Final = 64
KINDS: Final[dict[str, tuple[int, dict[str, Any]]]] = {
    "linker": (PAGE_TOKENS, {"linker": True, "client": PATIENT}),
    "stock": (CHUNK_TOKENS, {}),
}
"""Tokens of an object, and arguments of engines."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Arguments of engines with that model."""
    model = Architecture("deepseek-mla").make(tmp_path_factory.mktemp("models"))
    return {"model": model, "driver": "tests.engine.sglang_mla"}


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory, engine: dict[str, Any]) -> Iterator[Reference]:
    log = tmp_path_factory.mktemp("mla-reference") / "engine.log"
    reference = Reference(SglangProcess(log, port=None, **engine))
    yield reference
    reference.close()


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, engine: dict[str, Any], kind: str) -> Iterator[SglangSite]:
    unit_tokens, more = KINDS[kind]
    site = SglangSite(tmp_path_factory.mktemp("mla-site"), unit_tokens=unit_tokens, **more, **engine)
    yield site
    site.close()


def test_a_prompt_comes_back_from_l1_and_from_disk(site: SglangSite, truth: Reference, kind: str) -> None:
    tokens, unit_tokens = prompt(301), KINDS[kind][0]
    cold = site.stored(tokens)
    back = site.ask_anew(tokens)
    site.crash_server()
    if kind == "linker":
        site.wait_registered()
    else:  # SGLang's own client registers once
        site.restart_engine()
    found = site.ask_anew(tokens)
    assert_computed([cold])
    assert_cached([back, found], unit_tokens)
    assert site.server.status()["chunks"]["loaded_from_l2"] == len(tokens) // unit_tokens
    assert_right([cold, back, found], truth.answers([tokens] * 3))
    site.wait_nothing_held()


@pytest.mark.alone
@pytest.mark.slow
def test_ranks_share_pages_and_one_stores(
    site: SglangSite, truth: Reference, kind: str, engine: dict[str, Any]
) -> None:
    """So that engines with other tensor-parallel sizes hit them, too."""
    (unit_tokens, more), known, new = KINDS[kind], prompt(302), prompt(303)
    site.stored(known)
    before = len(site.l2.objects())
    with site.another("two-ranks", tensor_parallel=2, **more, **engine) as ranks:
        shared = ranks.ask([known])
        cold = ranks.ask([new])
        site.wait_stored(before + len(new) // unit_tokens)
        ranks.flush()
        back = ranks.ask([new])
    assert len(site.l2.objects()) == before + len(new) // unit_tokens
    assert_computed(cold)
    assert_cached([*shared, *back, site.ask_anew(new)], unit_tokens)
    assert_right([*shared, *cold, *back], truth.answers([known, new, new]))
    site.wait_nothing_held()
