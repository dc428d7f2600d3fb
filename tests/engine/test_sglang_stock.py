"""SGLang as its users get it, `--enable-lmcache` with the public client, and our server.

SGLang reports tokens of its own cache and of the server as one number.  So a hit of the server shows only where SGLang's cache
has lost them: pushed out by another prompt, or emptied.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from demo.engine_process import MODEL
from demo.sglang_process import SGLANG_PYTHON, SglangProcess
from tests.engine.comparison import assert_cached, assert_computed, assert_right
from tests.engine.reference import Reference
from tests.engine.sglang_site import CHUNK_TOKENS, CHUNKS, FILLER_TOKENS, SglangSite, prompt

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.timeout(1_200),
    pytest.mark.skipif(not SGLANG_PYTHON.exists(), reason="no SGLang here: run `make setup-sglang`"),
    pytest.mark.skipif(not (MODEL / "model.safetensors").exists(), reason="no model here: run `make setup`"),
]


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
