from __future__ import annotations

import pytest

from lmcache_observability.otlp_url import otlp_url


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://host:4318", "http://host:4318/v1/traces"),
        ("https://host/", "https://host/v1/traces"),
        ("http://host:4318/otlp", "http://host:4318/otlp/v1/traces"),
        ("http://host:4318/v1/traces", "http://host:4318/v1/traces"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
    ],
)
def test_the_signal_is_added_once(endpoint: str, url: str) -> None:
    assert otlp_url(endpoint, "traces") == url


@pytest.mark.parametrize(
    ("endpoint", "word"),
    [
        ("", "not the URL"),
        ("host:4318", "not the URL"),
        ("grpc://host:4317", "not the URL"),
        ("http://:4318", "not the URL"),
        ("http://host:port", "not a URL"),
        ("http://[::1", "not a URL"),
        ("http://host:4318?token=x", "'?'"),
    ],
)
def test_what_is_not_a_collector_is_refused(endpoint: str, word: str) -> None:
    with pytest.raises(ValueError, match=r"expected|'\?'") as error:
        otlp_url(endpoint, "traces")
    assert word in str(error.value)


def test_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_HEADERS") as error:
        otlp_url("http://user:hunter2@host:4318", "traces")
    assert "hunter2" not in str(error.value)
