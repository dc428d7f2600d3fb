"""Opens the subscriber `metrics`, with its addresses to listen on and to push to."""

from __future__ import annotations

import logging

from lmcache_core import ResourceError
from lmcache_observability.metrics.scrape_port import ScrapePort
from lmcache_observability.metrics.settings import MetricsSettings
from lmcache_observability.metrics.subscriber import MetricsSubscriber, Push

logger = logging.getLogger(__name__)


def open_metrics(settings: MetricsSettings) -> MetricsSubscriber:
    """Raises ResourceError for a port that was asked for and is not available; without the default one there is a warning."""
    subscriber = MetricsSubscriber(settings, _open_push(settings))
    if settings.prometheus_port:
        _listen(subscriber, settings)
    return subscriber


def _listen(subscriber: MetricsSubscriber, settings: MetricsSettings) -> None:
    host, port = settings.prometheus_host, settings.prometheus_port
    try:
        subscriber.listen(ScrapePort(host, port, subscriber.expose))
    except OSError as error:
        reason = f"cannot listen on {host}:{port}: {error.strerror or error}"
        if settings.prometheus_port_given:
            subscriber.close()
            raise ResourceError(f"--prometheus-port: {reason}; choose another port, or 0 for none") from None
        logger.warning(
            "no port for metrics alone, /metrics of the admin API has them: %s; choose one with --prometheus-port",
            reason,
        )


def _open_push(settings: MetricsSettings) -> Push | None:
    if settings.otlp_endpoint is None:
        return None
    from lmcache_observability.metrics.otlp_push import (
        OtlpPush,
    )  # here: it takes a while, and most servers push nothing

    return OtlpPush(settings.otlp_endpoint, settings.otlp_interval_seconds, settings.otlp_timeout_seconds)
