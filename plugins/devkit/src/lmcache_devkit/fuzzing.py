"""How suites that plugins run try values."""

from __future__ import annotations

from typing import Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis import core as hypothesis_core

FUZZ: Final = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),  # one method serves several suites, and machines are slow
    database=None,
    phases=(Phase.explicit, Phase.generate),  # a check that fails takes no longer than one that passes
    report_multiple_bugs=False,
    derandomize=hypothesis_core.global_force_seed
    is None,  # the same values each time, unless --hypothesis-seed is given
)
