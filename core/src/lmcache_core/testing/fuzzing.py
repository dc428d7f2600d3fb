"""How suites that plugins run try values."""

from __future__ import annotations

from typing import Final

from hypothesis import HealthCheck, settings

FUZZ: Final = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),  # one method serves several suites, and machines are slow
    database=None,
    derandomize=True,
)
