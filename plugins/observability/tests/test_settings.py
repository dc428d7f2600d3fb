"""The flags about metrics, spans and recordings: which subscribers they make active, with which settings."""

from __future__ import annotations

from typing import Any

import pytest

from lmcache_client.errors import ConfigError
from lmcache_core.app.configuration import ServerFlags, read_settings
from lmcache_core.app.offer_specs import OfferSpec, offer_specs
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_observability.metrics.settings import MetricsSettings
from lmcache_observability.settings import ObservabilitySettings

ALWAYS = {"log", "recent_events", "slow_requests"}


def subscribers(*flags: str) -> dict[str, OfferSpec]:
    plugins = load_plugins(["observability"])
    settings = read_settings(ServerFlags(plugins).given(flags), plugins)
    found = offer_specs(settings, plugins).subscribers
    return {spec.name: spec for spec in found if spec.name not in ALWAYS}


def settings_of(spec: OfferSpec) -> dict[str, Any]:
    assert spec.settings is not None
    return spec.settings.model_dump()


def test_without_a_flag_metrics_have_their_defaults() -> None:
    assert list(subscribers()) == ["metrics"]
    assert settings_of(subscribers()["metrics"]) == MetricsSettings.model_validate({}).model_dump()


def test_defaults_of_flags_are_those_of_the_subscribers() -> None:
    flags = ObservabilitySettings.model_validate({})
    metrics = MetricsSettings.model_validate({})
    assert (flags.prometheus_host, flags.prometheus_port) == (metrics.prometheus_host, metrics.prometheus_port)
    assert (flags.otlp_endpoint, flags.metrics_sample_rate) == (metrics.otlp_endpoint, metrics.sample_rate)
    lookup_hash = settings_of(subscribers("--lookup-hash-log-dir", "d")["lookup_hash"])
    for name in ("rotation_interval", "rotation_max_size", "max_files"):
        assert getattr(flags, f"lookup_hash_log_{name}") == lookup_hash[name]


def test_flags_reach_the_settings() -> None:
    found = subscribers("--prometheus-port", "9100", "--otlp-endpoint", "http://host:4318", "--enable-tracing")
    assert list(found) == ["metrics", "tracing"]
    values = settings_of(found["metrics"])
    assert (values["prometheus_port"], values["prometheus_port_given"]) == (9100, True)
    assert (values["otlp_endpoint"], values["exemplars"]) == ("http://host:4318", True)
    assert settings_of(found["tracing"])["otlp_endpoint"] == "http://host:4318"
    assert found["metrics"].needed
    assert found["tracing"].needed
    assert settings_of(subscribers("--metrics-sample-rate", "1")["metrics"])["sample_rate"] == 1
    assert settings_of(subscribers("--prometheus-host", "::1")["metrics"])["prometheus_host"] == "::1"


def test_a_flag_makes_its_subscriber_active() -> None:
    trace = settings_of(subscribers("--trace-level", "events", "--trace-output", "t.bin")["trace"])
    assert (trace["level"], trace["output"].name) == ("events", "t.bin")
    given = ("--lookup-hash-log-dir", "d", "--lookup-hash-log-max-files", "3")
    lookup_hash = settings_of(subscribers(*given)["lookup_hash"])
    assert (lookup_hash["dir"].name, lookup_hash["max_files"]) == ("d", 3)


def test_off_means_off() -> None:
    assert subscribers("--disable-metrics", "--prometheus-port", "9100") == {}
    assert subscribers("--disable-observability", "--trace-level", "events", "--trace-output", "t") == {}
    assert "trace" not in subscribers("--trace-level", "off")
    assert settings_of(subscribers("--prometheus-port", "0")["metrics"])["prometheus_port"] == 0


def test_settings_by_the_name_of_the_subscriber_go_before_defaults() -> None:
    given = '{"subscriber:metrics": {"prometheus_port": 7}, "subscriber:trace": {"output": "t"}}'
    found = subscribers("--offer-settings", given)
    assert settings_of(found["metrics"])["prometheus_port"] == 7
    assert settings_of(found["trace"])["level"] == "storage"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--trace-output", "t"], "--trace-output does nothing without --trace-level; add it or leave this out"),
        (["--trace-level", "events"], "--trace-level: field 'output'"),
        (["--lookup-hash-log-max-files", "3"], "does nothing without --lookup-hash-log-dir"),
        (["--enable-tracing"], "--enable-tracing: field 'otlp_endpoint'"),
        (
            ["--disable-metrics", "--otlp-endpoint", "http://h:1"],
            "--otlp-endpoint does nothing without --enable-tracing",
        ),
        (["--otlp-endpoint", "host"], "--otlp-endpoint: field 'otlp_endpoint'"),
        (
            ["--prometheus-port", "8", "--offer-settings", '{"subscriber:metrics": {"prometheus_port": 7}}'],
            "--prometheus-port and 'prometheus_port' of --offer-settings subscriber:metrics are the same",
        ),
    ],
)
def test_what_makes_no_sense_is_said(flags: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        subscribers(*flags)
    assert says in str(raised.value)


@pytest.mark.parametrize("name", sorted(ObservabilitySettings.model_fields))
def test_a_flag_without_the_plugin_names_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    core = load_plugins(safe_mode=True)
    kept = [row.candidate for row in core.rows() if row.candidate.name == "builtin"]
    monkeypatch.setattr("lmcache_core.app.plugins.loading.discover", lambda: kept)
    flag = f"--{name.replace('_', '-')}"
    with pytest.raises(ConfigError) as raised:
        ServerFlags(load_plugins()).given([f"{flag}=1"])
    assert str(raised.value) == f"{flag} belongs to lmcache-observability: pip install lmcache-observability"
