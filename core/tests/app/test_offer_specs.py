"""Settings of policies, subscribers and request modules, and what is wrong with any of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmcache_client.errors import ConfigError
from lmcache_core.app.configuration import ServerFlags, read_settings
from lmcache_core.app.offer_specs import OfferSpec, OfferSpecs, offer_specs
from lmcache_core.app.plugins.discovery import Status
from lmcache_core.app.plugins.loading import load_plugins

Install = Callable[..., Path]
SOURCE = """
    from typing import Annotated
    from pydantic import Field
    from lmcache_core import Offer, PluginSettings, hookimpl

    class AcmeSettings(PluginSettings):
        ratio: Annotated[float, Field(gt=0, lt=1)] = 0.5
        label: str = "none"

    def open_it(settings, *context):
        return settings

    def offers(kind, **more):
        return [Offer("acme", kind, "acme_plugin:open_it", "acme_plugin:AcmeSettings", **more)]

    @hookimpl
    def lmcache_eviction_policies():
        return offers("eviction policy")

    @hookimpl
    def lmcache_store_policies():
        return offers("store policy")

    @hookimpl
    def lmcache_prefetch_policies():
        return offers("prefetch policy")

    @hookimpl
    def lmcache_subscribers():
        return [*offers("subscriber", default=True), Offer("quiet", "s", "acme_plugin:open_it", "acme_plugin:AcmeSettings")]

    @hookimpl
    def lmcache_request_modules():
        return offers("request module")
    """


def specs(*flags: str) -> OfferSpecs:
    return offer_specs(read_settings(ServerFlags().given(flags)), load_plugins())


def name_and_settings(spec: OfferSpec) -> tuple[str, dict[str, Any] | None]:
    return spec.name, None if spec.settings is None else spec.settings.model_dump()


def by_name(given: tuple[OfferSpec, ...]) -> dict[str, dict[str, Any] | None]:
    return dict(name_and_settings(spec) for spec in given)


FLAGS = ["--eviction-policy", "--l2-store-policy", "--l2-prefetch-policy"]


def test_without_a_word_it_is_core_s_own(only_core: None) -> None:
    given = specs()
    assert name_and_settings(given.eviction_policy) == ("LRU", None)
    assert (given.store_policy.name, given.prefetch_policy.name) == ("default", "default")
    assert list(by_name(given.subscribers)) == ["log"]
    assert list(by_name(given.request_modules)) == ["lookup", "management", "engine_driven"]


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("acme", {"ratio": 0.5, "label": "none"}),
        ('{"type": "acme"}', {"ratio": 0.5, "label": "none"}),
        (' {"type": "acme", "ratio": 0.1, "label": "x"}', {"ratio": 0.1, "label": "x"}),
    ],
)
def test_a_policy_is_a_name_or_an_object(install: Install, flag: str, text: str, settings: dict[str, Any]) -> None:
    install("acme", SOURCE)
    given = specs(flag, text)
    chosen = [given.eviction_policy, given.store_policy, given.prefetch_policy][FLAGS.index(flag)]
    assert name_and_settings(chosen) == ("acme", settings)
    assert chosen.open(load_plugins()).model_dump() == settings


def test_policies_and_settings_of_the_environment_and_of_the_file(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("acme", SOURCE)
    monkeypatch.setenv("LMCACHE_EVICTION_POLICY", '{"type": "acme", "ratio": 0.2}')
    monkeypatch.setenv("LMCACHE_OFFER_SETTINGS", '{"subscriber:acme": {"label": "environment"}}')
    file = tmp_path / "a.yaml"
    file.write_text(
        "l2_store_policy: {type: acme, ratio: 0.3}\nl2_prefetch_policy: acme\n"
        "offer_settings: {subscriber:acme: {label: file}}\n"
    )
    given = specs("--config", str(file))
    assert name_and_settings(given.eviction_policy) == ("acme", {"ratio": 0.2, "label": "none"})
    assert name_and_settings(given.store_policy) == ("acme", {"ratio": 0.3, "label": "none"})
    assert name_and_settings(given.prefetch_policy) == ("acme", {"ratio": 0.5, "label": "none"})
    assert by_name(given.subscribers)["acme"] == {"ratio": 0.5, "label": "environment"}
    monkeypatch.delenv("LMCACHE_OFFER_SETTINGS")
    assert by_name(specs("--config", str(file)).subscribers)["acme"] == {"ratio": 0.5, "label": "file"}


def test_what_is_active_by_itself_takes_its_settings_from_offer_settings(install: Install) -> None:
    install("acme", SOURCE)
    assert by_name(specs().subscribers)["acme"] == {"ratio": 0.5, "label": "none"}
    assert "quiet" not in by_name(specs().subscribers)
    given = specs(
        *("--offer-settings", '{"subscriber:acme": {"ratio": 0.9}, "request_module:acme": {"label": "m"}}'),
        *("--engine-type", "acme"),
    )
    assert by_name(given.subscribers)["acme"] == {"ratio": 0.9, "label": "none"}
    assert by_name(given.request_modules)["acme"] == {"ratio": 0.5, "label": "m"}


def test_a_request_module_becomes_active_by_being_named(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a flag, as often as it is given, or by settings of its own."""
    install("acme", SOURCE)
    install("more", SOURCE.replace('"acme"', '"more"').replace('"quiet"', '"more_quiet"').replace("acme_", "more_"))
    assert not {"acme", "more"} & set(by_name(specs().request_modules))
    both = specs("--engine-type", "acme", "--engine-type", "more").request_modules
    assert {"acme", "more"} <= set(by_name(both))
    monkeypatch.setenv("LMCACHE_ENGINE_TYPE", "acme,more,default")
    assert by_name(specs().request_modules) == by_name(both)
    monkeypatch.delenv("LMCACHE_ENGINE_TYPE")
    given = specs("--offer-settings", '{"request_module:acme": {"label": "m"}}')
    assert by_name(given.request_modules)["acme"] == {"ratio": 0.5, "label": "m"}


def test_a_quiet_subscriber_becomes_active_by_being_named(install: Install) -> None:
    install("acme", SOURCE)
    given = ("--offer-settings", '{"subscriber:quiet": {}}')
    assert "quiet" in by_name(specs(*given).subscribers)
    assert specs(*given, "--disable-observability").subscribers == ()
    assert "log" not in by_name(specs("--disable-logging").subscribers)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--eviction-policy", '{"type": "acme", "ratio": 2}'], "--eviction-policy: field 'ratio' is 2: "),
        (
            ["--l2-store-policy", '{"type": "acme", "rato": 2}'],
            "--l2-store-policy: no field is called 'rato'; did you mean",
        ),
        (["--eviction-policy", '{"type": "LRU", "x": 2}'], "eviction policy 'LRU' takes no settings; leave out 'x'"),
        (["--eviction-policy", "LRUU"], "--eviction-policy: no eviction policy is called 'LRUU'; did you mean 'LRU'?"),
        (["--eviction-policy", '{"ratio": 1}'], "--eviction-policy: expected a name, or a JSON object such as"),
        (["--eviction-policy", '{"type": 1}'], "--eviction-policy: expected a name, or a JSON object such as"),
        (["--eviction-policy", '{"type": "acme"'], "--eviction-policy: not JSON: "),
        (["--eviction-policy", ""], "--eviction-policy: expected a name"),
        (["--offer-settings", "[]"], "--offer-settings: expected a JSON object of objects"),
        (["--offer-settings", '{"subscriber:acme": 1}'], "--offer-settings: expected a JSON object of objects"),
        (
            ["--offer-settings", '{"subscriber:acme": {}, "subscriber:acme": {}}'],
            "key 'subscriber:acme' is given twice",
        ),
        (["--offer-settings", '{"acme": {}}'], "--offer-settings: 'acme' is not of the form kind:name"),
        (["--offer-settings", '{"subscribers:acme": {}}'], "'subscribers:acme' is not of the form kind:name"),
        (
            ["--offer-settings", '{"subscriber:acne": {}}'],
            "--offer-settings: no subscriber is called 'acne'; did you mean",
        ),
        (
            ["--offer-settings", '{"subscriber:acme": {"x": 1}}'],
            "--offer-settings subscriber:acme: no field is called 'x'",
        ),
        (["--offer-settings", '{"subscriber:log": {"x": 1}}'], "subscriber 'log' takes no settings; leave out 'x'"),
        (
            ["--offer-settings", '{"request_module:engine_driven": {}}', "--supported-transfer-mode", "lmcache_driven"],
            "request module 'engine_driven' is not in use with --supported-transfer-mode lmcache_driven",
        ),
        (["--offer-settings", '{"eviction_policy:acme": {}}'], 'go with the name: --eviction-policy \'{"type": "acme"'),
        (["--offer-settings", '{"l2_adapter:memory": {}}'], "go with the name: --l2-adapter"),
        (["--offer-settings", '{"command:acme": {}}'], "commands have flags of their own"),
    ],
)
def test_what_is_wrong_is_one_line(install: Install, flags: list[str], says: str) -> None:
    install("acme", SOURCE)
    with pytest.raises(ConfigError) as caught:
        specs(*flags)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


REQUIRING = SOURCE.replace("ratio: Annotated", "url: str\n        ratio: Annotated")


def test_what_is_active_by_itself_and_misses_a_setting_is_left_out_with_the_way_out(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install("acme", REQUIRING)
    plugins = load_plugins()
    given = offer_specs(read_settings(ServerFlags().given([])), plugins)
    assert "acme" not in by_name(given.subscribers)
    assert "log" in by_name(given.subscribers)
    (row,) = [row for row in plugins.rows() if row.candidate.name == "acme"]
    assert row.status is Status.BROKEN
    assert row.error == "--offer-settings subscriber:acme: field 'url' is required"
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line == f"plugin 'acme' (acme-dist 1.0) is broken: {row.error}; or leave it out: --no-plugin acme"


@pytest.mark.parametrize("flags", [["--plugin", "acme"], ["--offer-settings", '{"subscriber:acme": {}}']])
def test_a_requested_offer_that_misses_a_setting_stops_the_start(install: Install, flags: list[str]) -> None:
    install("acme", REQUIRING)
    with pytest.raises(ConfigError, match=r"^--offer-settings subscriber:acme: field 'url' is required$"):
        specs(*flags)


def test_values_of_an_object_are_not_repeated(install: Install) -> None:
    install("acme", SOURCE)
    with pytest.raises(ConfigError) as caught:
        specs("--eviction-policy", '{"type": "acme", "password": "hunter2"')
    assert "hunter2" not in str(caught.value)
