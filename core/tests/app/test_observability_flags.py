"""Flags of the server that are settings of subscribers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmcache_client.errors import ConfigError
from lmcache_core.app.configuration import read_settings
from lmcache_core.app.flags import ServerFlags
from lmcache_core.app.observability_flags import USES
from lmcache_core.app.offer_specs import OfferSpec, offer_specs
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.settings import ServerSettings

Install = Callable[..., Path]
SOURCE = """
    from lmcache_core import Offer, PluginSettings, hookimpl

    class MetricsSettings(PluginSettings):
        prometheus_host: str = ""
        prometheus_port: int = 0
        prometheus_port_given: bool = False
        otlp_endpoint: str | None = None
        sample_rate: float = 1.0
        exemplars: bool = False

    class TraceSettings(PluginSettings):
        level: str = "storage"
        output: str | None = None

    class Narrow(PluginSettings):
        prometheus_port: int = 0

    def open_it(settings):
        return settings

    @hookimpl
    def lmcache_subscribers():
        return [
            Offer("metrics", "m", "acme_plugin:open_it", "acme_plugin:MetricsSettings", default=True),
            Offer("trace", "t", "acme_plugin:open_it", "acme_plugin:TraceSettings"),
            Offer("tracing", "s", "acme_plugin:open_it"),
        ]
    """


def subscribers(*flags: str) -> dict[str, OfferSpec]:
    settings = read_settings(ServerFlags().given(flags))
    found = offer_specs(settings, load_plugins(settings.plugins)).subscribers
    return {spec.name: spec for spec in found if spec.name != "log"}


def told(spec: OfferSpec) -> dict[str, Any]:
    assert spec.settings is not None
    return spec.settings.model_dump()


@pytest.fixture
def acme(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("acme", SOURCE)
    monkeypatch.setenv("LMCACHE_PLUGINS", "acme")


def test_every_setting_of_the_table_exists() -> None:
    assert {use.setting for use in USES} <= set(ServerSettings.model_fields)


def test_without_a_flag_metrics_get_the_defaults_of_the_server(acme: None) -> None:
    assert told(subscribers()["metrics"]) == {
        "prometheus_host": "127.0.0.1",
        "prometheus_port": 9090,
        "prometheus_port_given": False,
        "otlp_endpoint": None,
        "sample_rate": 0.01,
        "exemplars": False,
    }
    assert list(subscribers()) == ["metrics"]


def test_flags_reach_the_settings(acme: None) -> None:
    found = subscribers("--prometheus-port", "9100", "--otlp-endpoint", "http://host:4318", "--enable-tracing")
    assert list(found) == ["metrics", "tracing"]
    values = told(found["metrics"])
    assert (values["prometheus_port"], values["prometheus_port_given"]) == (9100, True)
    assert (values["otlp_endpoint"], values["exemplars"]) == ("http://host:4318", True)
    assert found["tracing"].settings is None
    assert found["metrics"].needed
    assert found["tracing"].needed


def test_a_flag_makes_its_subscriber_active(acme: None) -> None:
    trace = told(subscribers("--trace-level", "events", "--trace-output", "t.bin")["trace"])
    assert trace == {"level": "events", "output": "t.bin"}


def test_off_means_off(acme: None) -> None:
    assert subscribers("--disable-metrics", "--prometheus-port", "9100") == {}
    assert subscribers("--disable-observability", "--trace-level", "events") == {}
    assert "trace" not in subscribers("--trace-level", "off")
    assert told(subscribers("--prometheus-port", "0")["metrics"])["prometheus_port"] == 0


def test_settings_by_the_name_of_the_subscriber_go_before_defaults(acme: None) -> None:
    found = subscribers("--offer-settings", '{"subscriber:metrics": {"prometheus_port": 7}, "subscriber:trace": {}}')
    assert told(found["metrics"])["prometheus_port"] == 7
    assert told(found["trace"]) == {"level": "storage", "output": None}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--trace-output", "t"], "--trace-output does nothing without --trace-level; add it or leave this out"),
        (["--lookup-hash-log-max-files", "3"], "does nothing without --lookup-hash-log-dir"),
        (
            ["--prometheus-port", "8", "--offer-settings", '{"subscriber:metrics": {"prometheus_port": 7}}'],
            "--prometheus-port and 'prometheus_port' of --offer-settings subscriber:metrics are the same",
        ),
        (["--lookup-hash-log-dir", "d"], "--lookup-hash-log-dir: subscriber 'lookup_hash' cannot be had"),
    ],
)
def test_what_makes_no_sense_is_said(flags: list[str], says: str, acme: None) -> None:
    with pytest.raises(ConfigError) as raised:
        subscribers(*flags)
    assert says in str(raised.value)


def test_a_stranger_s_subscriber_without_the_setting_is_not_skipped_in_silence(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("acme", SOURCE.replace("acme_plugin:MetricsSettings", "acme_plugin:Narrow"))
    monkeypatch.setenv("LMCACHE_PLUGINS", "acme")
    assert told(subscribers()["metrics"]) == {"prometheus_port": 9090}
    with pytest.raises(ConfigError, match="--otlp-endpoint: subscriber 'metrics' has no setting 'otlp_endpoint'"):
        subscribers("--otlp-endpoint", "http://host:4318")


@pytest.mark.parametrize(
    "flags",
    [
        ["--prometheus-port", "9100"],
        ["--otlp-endpoint", "http://host"],
        ["--metrics-sample-rate", "1"],
        ["--enable-tracing"],
        ["--trace-level", "storage"],
        ["--lookup-hash-log-dir", "d"],
    ],
)
def test_a_flag_without_the_plugin_names_what_to_install(flags: list[str], only_core: None) -> None:
    with pytest.raises(ConfigError) as raised:
        subscribers(*flags)
    assert str(raised.value).startswith(f"{flags[0]}: ")
    assert "pip install lmcache-observability" in str(raised.value)


@pytest.mark.parametrize("flags", [[], ["--prometheus-port", "0"], ["--disable-metrics"], ["--trace-level", "off"]])
def test_flags_that_ask_for_nothing_need_no_plugin(flags: list[str], only_core: None) -> None:
    assert subscribers(*flags) == {}
