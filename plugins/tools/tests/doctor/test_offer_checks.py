"""Checks that a third party's plugin brings are part of the doctor's answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lmcache_core.app.adapter_specs import adapter_specs
from lmcache_core.app.configuration import read_settings
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_tools.doctor.check_context import CheckContext
from lmcache_tools.doctor.offer_checks import offer_checks
from lmcache_tools.doctor.probe_result import Level, ProbeResult

SOURCE = """
    from pydantic import Field

    from lmcache_core import CheckResult, Offer, PluginSettings, SettingGroup, hookimpl

    class Far(PluginSettings):
        acme_far: bool = Field(False, description="f")

    def apply(values, given):
        return {"l1_memory:far": {"speed": 3}} if values.acme_far else {}

    class Settings(PluginSettings):
        speed: int = 1

    def check(settings):
        if settings.speed < 10:
            yield CheckResult("warn", f"speed {settings.speed} is slow", "raise speed to 10")

    def failing(settings):
        raise RuntimeError("no luck")

    @hookimpl
    def lmcache_l2_adapters():
        return [Offer("acme", "a", "acme_plugin:x", "acme_plugin:Settings", check="acme_plugin:check")]

    @hookimpl
    def lmcache_serdes():
        return [Offer("packed", "p", "acme_plugin:x", "acme_plugin:Settings", check="acme_plugin:check")]

    @hookimpl
    def lmcache_l1_memories():
        return [Offer("far", "f", "acme_plugin:x", "acme_plugin:Settings", check="acme_plugin:check")]

    @hookimpl
    def lmcache_settings():
        return [SettingGroup("Acme", "acme_plugin:Far", "acme_plugin:apply")]

    @hookimpl
    def lmcache_subscribers():
        return [
            Offer("idle", "i", "acme_plugin:x", "acme_plugin:Settings", check="acme_plugin:check"),
            Offer("listener", "l", "acme_plugin:x", check="acme_plugin:failing", default=True),
        ]
    """


@pytest.fixture
def found(install: Callable[..., Path]) -> list[ProbeResult]:
    install("acme", SOURCE)
    plugins = load_plugins(["acme"])
    settings = read_settings({"l2_adapter": [{"type": "acme"}, {"type": "acme", "speed": 20}]}, plugins)
    return list(offer_checks(CheckContext(settings, plugins, adapter_specs(settings.l2_adapter, plugins))))


def test_what_the_configuration_uses_is_checked_with_its_settings(found: list[ProbeResult]) -> None:
    assert found[0] == ProbeResult("adapter acme", Level.WARN, "speed 1 is slow", "raise speed to 10")
    assert [each.probe for each in found] == ["adapter acme", "subscriber listener"], "not the one that is not in use"


def test_a_check_that_fails_is_named(found: list[ProbeResult]) -> None:
    assert "its check 'acme_plugin:failing' failed: RuntimeError: no luck" in found[1].text


def test_serdes_of_adapters_and_the_memory_of_l1_are_in_use_too(install: Callable[..., Path]) -> None:
    install("acme", SOURCE)
    plugins = load_plugins(["acme", "serde"])
    adapter = {"type": "acme", "speed": 20, "serde": {"type": "packed", "speed": 4}}
    settings = read_settings({"l2_adapter": [adapter], "acme_far": True}, plugins)
    found = offer_checks(CheckContext(settings, plugins, adapter_specs(settings.l2_adapter, plugins)))
    assert [(each.probe, each.text) for each in found][:2] == [
        ("serde packed", "speed 4 is slow"),
        ("L1 memory far", "speed 3 is slow"),
    ]
