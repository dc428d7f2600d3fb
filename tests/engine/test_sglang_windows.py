"""SGLang with a model whose layers attend to a window of tokens: they have a pool of their own, and pages of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from demo.child_process import ChildError
from demo.sglang_process import SglangProcess
from tests.engine.architectures import Architecture
from tests.engine.comparison import assert_cached, assert_computed, assert_right
from tests.engine.reference import Reference
from tests.engine.sglang_cases import MARKS, PATIENT, SglangCases, ask_at_random
from tests.engine.sglang_site import CHUNK_TOKENS, SglangSite, prompt

pytestmark = MARKS

PAGE_TOKENS: Final = 64
PAGES: Final = len(prompt(0)) // PAGE_TOKENS
WINDOW_PAGES: Final = 4
DRIVER: Final = "tests.engine.sglang_windows"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Arguments of engines with that model."""
    return {"model": Architecture("mellum-windows").make(tmp_path_factory.mktemp("models")), "driver": DRIVER}


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory, engine: dict[str, Any]) -> Iterator[Reference]:
    log = tmp_path_factory.mktemp("windows-reference") / "engine.log"
    reference = Reference(SglangProcess(log, port=None, **engine))
    yield reference
    reference.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, engine: dict[str, Any]) -> Iterator[SglangSite]:
    folder = tmp_path_factory.mktemp("windows-site")
    site = SglangSite(folder, unit_tokens=PAGE_TOKENS, linker=True, client=PATIENT, **engine)
    yield site
    site.close()


class TestWindows(SglangCases):
    unit_tokens = PAGE_TOKENS


def test_a_prompt_comes_back_with_the_window_at_its_end(
    site: SglangSite, truth: Reference, engine: dict[str, Any]
) -> None:
    """From L1, from what another engine stored, and from disk."""
    tokens = prompt(201)
    before = len(site.l2.objects())
    cold = site.stored(tokens)
    site.wait_stored(before + PAGES + WINDOW_PAGES)
    back = site.ask_anew(tokens)
    with site.another("second", client=PATIENT, linker=True, **engine) as second:
        shared = second.ask([tokens])
    site.crash_server()
    site.wait_registered(2)
    found = site.ask_anew(tokens)
    assert_computed([cold])
    assert_cached([back, *shared, found], PAGE_TOKENS)
    assert site.server.status()["chunks"]["loaded_from_l2"] == PAGES + WINDOW_PAGES
    assert_right([cold, back, *shared, found], truth.answers([tokens] * 4))
    site.wait_nothing_held()


def test_a_prefix_without_its_window_is_computed(site: SglangSite, truth: Reference) -> None:
    tokens = prompt(202)
    site.stored(tokens)
    longer, shorter = [*tokens, *prompt(203, 300)], tokens[:900]
    assert site.ask_anew(longer).cached_tokens == PAGES * PAGE_TOKENS
    parted = site.ask_anew(shorter)
    assert_computed([parted])
    assert_right([parted], truth.answers([shorter]))
    site.wait_nothing_held()


def test_random_prefixes_evictions_and_aborts(site: SglangSite, truth: Reference) -> None:
    ask_at_random(site, truth, 48, 12)


def test_sglangs_own_client_refuses_windows(site: SglangSite, tmp_path: Path, engine: dict[str, Any]) -> None:
    """Where the engine copies, which it does without a GPU."""
    stock = SglangProcess(tmp_path / "stock.log", port=site.server.port, **engine)
    with pytest.raises(ChildError, match="SGLang ended"):
        stock.start()
    assert "does not support multiple KV transfer groups" in stock.log
    stock.kill()


def test_sglangs_own_client_takes_windows_that_are_kept_whole(
    site: SglangSite, truth: Reference, engine: dict[str, Any]
) -> None:
    tokens = prompt(205)
    with site.another("whole", options={"disable_hybrid_swa_memory": True}, **engine) as stock:
        cold = stock.ask([tokens])
        site.server.wait_written(60)
        stock.flush()
        back = stock.ask([tokens])
    assert_computed(cold)
    assert_cached(back, CHUNK_TOKENS)
    assert_right([*cold, *back], truth.answers([tokens] * 2))


@pytest.mark.alone
@pytest.mark.slow
def test_tensor_parallel(site: SglangSite, engine: dict[str, Any]) -> None:
    """Both ranks find windows at the same ends."""
    tokens = prompt(204)
    with site.another("two-ranks", tensor_parallel=2, linker=True, client=PATIENT, **engine) as ranks:
        cold = ranks.ask([tokens])
        site.server.wait_written(60)
        ranks.flush()
        back = ranks.ask([tokens])
    assert_computed(cold)
    assert_cached(back, PAGE_TOKENS)
    assert_right(back, cold)
    site.wait_nothing_held()
