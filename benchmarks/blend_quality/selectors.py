"""Selectors to compare with: chance, and nothing beyond what the check layers repair.  Installed for the run alone."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from lmcache_blend_select import Facts, Need, Run, Selector, runs_of

_ENTRY_POINTS: Final = f"""
[lmcache.blend_selectors.v1]
random = {__name__}:RANDOM
check_layers_only = {__name__}:CHECK_LAYERS_ONLY
"""


def _random(facts: Facts) -> Sequence[Run]:
    columns = np.random.default_rng(0).choice(facts.tokens, facts.budget, replace=False)
    return runs_of(facts.positions()[np.sort(columns)])


def _nothing(facts: Facts) -> Sequence[Run]:
    return ()


RANDOM: Final = Selector(_random)
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
