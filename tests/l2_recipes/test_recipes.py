"""The combined recipe and the buffer-only one, for some seconds at full load; `python -m benchmarks.l2_soak` takes minutes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.l2_soak.recipes import MIB, RECIPES, Sizes, options
from benchmarks.l2_soak.report import text
from benchmarks.l2_soak.run import L2Soak, soak

SMALL = Sizes(l1_bytes=8 * MIB, l2_bytes=16 * MIB, chunk_bytes=MIB // 16)
REQUESTS_MIN = 150
"""Enough for L2 to be full, however slow the machine is."""


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.slow
def test_both_tiers_stay_within_their_capacities(recipe: str, tmp_path: Path) -> None:
    done = soak(recipe, "fs_native", seconds=5.0, engines=2, sizes=SMALL, folder=tmp_path, requests_min=REQUESTS_MIN)
    assert done.complaints == [], text(done)
    assert done.within
    assert done.tally.lost == 0
    assert done.taken >= 10
    assert done.tally.read > 0
    assert done.books["chunks"]["loaded_from_l2"] > 0
    assert done.books["l2_eviction"]["evicted"] > 0, "L2 was never full"
    assert done.highest["l2_bytes"] > 0.85 * SMALL.l2_bytes
    if recipe == "combined":
        assert done.books["l1_evicted"] > 0, "L1 was never full"
    assert "within their capacities throughout | yes" in text(done)
    assert msgspec.json.decode(done.save(tmp_path).read_bytes(), type=L2Soak) == done


def test_a_recipe_that_there_is_none_of() -> None:
    with pytest.raises(ValueError, match="no recipe is called 'cmbined'; there are: combined, buffer_only"):
        options("cmbined", "fs", SMALL, Path("l2"))
