"""What the subscriber listens on and pushes to."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator

import pytest

from lmcache_core import ConfigError, ResourceError
from lmcache_core.contracts.settings import validate
from lmcache_devkit import free_port
from lmcache_devkit.fake_server_view import FakeServerView
from lmcache_observability.metrics.open_metrics import open_metrics
from lmcache_observability.metrics.settings import MetricsSettings
from plugins.observability.tests.metrics.metrics_settings import metrics_settings


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number: int = server.getsockname()[1]
        yield number


def test_metrics_are_at_the_port() -> None:
    port = free_port()
    metrics = open_metrics(metrics_settings(prometheus_port=port, prometheus_port_given=True))
    metrics.begin(FakeServerView())
    with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=10) as answer:
        assert b'service_instance_id="instance"' in answer.read()
    metrics.close()
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)


def test_a_port_that_was_asked_for_must_be_had(taken: int) -> None:
    with pytest.raises(ResourceError) as raised:
        open_metrics(metrics_settings(prometheus_port=taken, prometheus_port_given=True))
    assert f"--prometheus-port: cannot listen on 127.0.0.1:{taken}" in str(raised.value)
    assert "choose another port, or 0 for none" in str(raised.value)


def test_without_the_default_one_it_goes_on(taken: int, caplog: pytest.LogCaptureFixture) -> None:
    metrics = open_metrics(metrics_settings(prometheus_port=taken))
    metrics.begin(FakeServerView())
    assert "target_info" in metrics.expose("").body.decode()
    assert "choose one with --prometheus-port" in caplog.text
    metrics.close()


def test_a_host_that_is_none_is_said() -> None:
    with pytest.raises(ResourceError, match=r"cannot listen on no\.such\.host\.invalid:1234"):
        open_metrics(
            metrics_settings(prometheus_host="no.such.host.invalid", prometheus_port=1234, prometheus_port_given=True)
        )


@pytest.mark.parametrize("endpoint", ["host:4318", "ftp://host", "http://user:secret@host:4318"])
def test_a_collector_that_is_none_is_said_without_its_secrets(endpoint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        validate(MetricsSettings, {"otlp_endpoint": endpoint}, "--otlp-endpoint")
    assert str(raised.value).startswith("--otlp-endpoint: field 'otlp_endpoint'")
