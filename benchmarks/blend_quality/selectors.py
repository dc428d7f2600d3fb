"""The ways to compute a prompt, and selectors to compare with: chance, nothing but what check layers repair, and nothing at
all, with K as it was stored."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from lmcache_blend_select import Facts, Need, Run, Selector, runs_of

FULL: Final = "full"
NOT_TURNED: Final = "not_turned"
_ENTRY_POINTS: Final = f"""
[lmcache.blend_selectors.v1]
random = {__name__}:RANDOM
check_layers_only = {__name__}:CHECK_LAYERS_ONLY
{NOT_TURNED} = {__name__}:NOTHING
"""


class Row(NamedTuple):
    """A way to compute a prompt; without a selector it is computed in full, without the cache."""

    name: str
    selector: str = ""
    ratio: float = 0.0


def rows(ratios: Iterable[float], selectors: Sequence[str]) -> list[Row]:
    """`full` comes last: what it computes is stored, and would be an exact prefix for rows behind it."""
    by_ratio = [Row(f"{selector} {ratio:.0%}", selector, ratio) for ratio in ratios for selector in selectors]
    return [
        Row("none, K not turned", NOT_TURNED),
        Row("none", "none"),
        Row("check layers only", "check_layers_only"),
        *by_ratio,
        Row(FULL),
    ]


def _random(facts: Facts) -> Sequence[Run]:
    columns = np.random.default_rng(0).choice(facts.tokens, facts.budget, replace=False)
    return runs_of(facts.positions()[np.sort(columns)])


def _nothing(facts: Facts) -> Sequence[Run]:
    return ()


RANDOM: Final = Selector(_random)
NOTHING: Final = Selector(_nothing, ratio=0.0)
CHECK_LAYERS_ONLY: Final = Selector(_nothing, frozenset({Need.DEVIATION}), ratio=0.0)


@contextmanager
def installed() -> Iterator[None]:
    """Let this process find the selectors as those of a distribution."""
    with tempfile.TemporaryDirectory() as folder:
        about = Path(folder) / "blend_quality-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: blend-quality\nVersion: 1\n")
        (about / "entry_points.txt").write_text(_ENTRY_POINTS)
        sys.path.append(folder)
        try:
            yield
        finally:
            sys.path.remove(folder)
