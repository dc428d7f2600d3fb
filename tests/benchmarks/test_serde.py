"""The benchmark of serdes: its model's cache, what it compares, and the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import serde
from benchmarks.results import Results
from benchmarks.serde import CAST, GREEDY_TOKENS, SHAPE, accuracy, alike, cache_of, cast, chunks_of, page
from benchmarks.serde_model import PREFILL_TOKENS, LayerCache, SmallModel


@pytest.fixture(scope="module")
def model() -> Iterator[SmallModel]:
    """Untrained.  With one thread: several wait for each other by spinning, which takes minutes on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(5)
    made: SmallModel = SmallModel(SHAPE).eval()
    yield made
    torch.set_num_threads(before)


def prompt(length: int) -> torch.Tensor:
    return torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(6))


def test_a_prompt_in_pieces_gives_the_cache_of_one_in_a_whole(model: SmallModel) -> None:
    tokens = prompt(PREFILL_TOKENS + 256)
    pieces, whole = model.prefill(tokens), model.steps(tokens).cache
    for one, other in zip(pieces, whole, strict=True):
        for part, wanted in zip(one, other, strict=True):
            assert part.shape[1] == len(tokens)
            assert torch.allclose(part, wanted, atol=0.05), "bfloat16 is all that may lie between them"


def test_a_cache_becomes_objects_and_a_cache_again(model: SmallModel) -> None:
    cache = model.prefill(prompt(512))
    for one, other in zip(cache_of(chunks_of(cache)), cache, strict=True):
        assert torch.equal(one.keys, other.keys)
        assert torch.equal(one.values, other.values)


def test_greedy_tokens_that_are_alike_are_those_before_the_first_that_is_not(model: SmallModel) -> None:
    cache = model.prefill(prompt(256))
    greedy = model.greedy(7, cache, 8)
    assert alike(model, cache, greedy) == 8
    altered = greedy.clone()
    altered[4] = (altered[4] + 1) % 256
    assert alike(model, cache, altered) == 3, "positions 1 to 3 are what it says itself"
    other = [LayerCache(layer.keys, -4 * layer.values) for layer in cache]
    found = 0
    for own, wanted in zip(model.greedy(7, other, 8)[1:], greedy[1:], strict=True):
        if own != wanted:
            break
        found += 1
    assert alike(model, other, greedy) == found < 8


def test_values_out_of_its_range_spoil_a_bare_cast_and_not_the_scaled_ones(model: SmallModel) -> None:
    """An arithmetic fact about the ways that are compared; no model here has such values by itself."""
    tokens = prompt(256 + serde.CONTINUED_TOKENS + 1)
    chunks = chunks_of(model.prefill(tokens[:256]))
    within = accuracy(model, chunks, tokens[256:])
    assert within["fp8"]["attention error"] == pytest.approx(within[CAST]["attention error"], rel=0.5)
    assert within["int8"]["attention error"] < within["fp8"]["attention error"]
    assert all(0 <= figures["greedy tokens alike"] <= GREEDY_TOKENS for figures in within.values())
    large = (torch.from_numpy(chunks.view(np.int16)).view(torch.bfloat16) * 4096).view(torch.int16).numpy()
    back = torch.from_numpy(cast(large.view(np.uint16)).view(np.int16)).view(torch.bfloat16)
    assert back.isnan().any() or back.abs().max() <= 448
    scaled = serde.through(serde.opened("fp8", {}))(np.ascontiguousarray(large.view(np.uint16)))
    kept = torch.from_numpy(scaled.view(np.int16)).view(torch.bfloat16).float()
    wanted = torch.from_numpy(large).view(torch.bfloat16).float()
    assert (kept - wanted).norm() < 0.05 * wanted.norm()


@pytest.fixture
def measured() -> Results:
    found = Results(
        what="serde", started_at="2026-01-02T03:04:05Z", machine={"cores": "2"}, subjects={"zstd": "", CAST: ""}
    )
    found.limits |= {"training_loss": 1.5, serde.LARGEST: 12.5}
    for number in range(2):
        found.add("zstd", number, {f"{figure}, kv": 2.0 + number for figure in serde.SIZES})
        found.add(CAST, number, {f"{figure}, 1024 tokens": 0.5 for figure in serde.ACCURACY})
    return found


def test_the_page_has_what_was_measured_and_the_models_range(measured: Results) -> None:
    shown = page(measured)
    assert "| zstd | 2.5 (2 to 3) | 2.5 (2 to 3) | 2.5 (2 to 3) |" in shown
    assert "Behind a prompt of 1,024 tokens:" in shown
    assert f"| {CAST} | 0.5 | 0.5 | 0.5 | 0.5 |" in shown
    assert "largest key or value is 12.5" in shown
    assert "Random bytes" not in shown


def test_a_page_without_a_place_is_named(measured: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, target = measured.save(tmp_path), tmp_path / "serde.md"
    monkeypatch.setattr(serde, "PAGE", target)
    target.write_text("nothing\n")
    with pytest.raises(SystemExit, match=r"serde\.md: the page needs one '<!-- serde: begin -->'"):
        serde._drawn([kept])
    target.write_text("before\n<!-- serde: begin -->\nold\n<!-- serde: end -->\nbehind\n")
    serde._drawn([kept])
    text = target.read_text()
    assert text.startswith("before\n<!-- serde: begin -->\n\nTaken on 2026-01-02")
    assert text.endswith("<!-- serde: end -->\nbehind\n")
    assert "old" not in text
