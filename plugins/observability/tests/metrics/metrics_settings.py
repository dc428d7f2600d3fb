"""Settings of the subscriber, for tests."""

from __future__ import annotations

from lmcache_observability.metrics.settings import MetricsSettings


def metrics_settings(**values: object) -> MetricsSettings:
    """These, and the defaults of all others."""
    return MetricsSettings.model_validate(values)
