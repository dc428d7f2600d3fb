"""The checks that plugins bring with what they offer."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from lmcache_client.errors import LMCacheError
from lmcache_core import CheckResult, Offer
from lmcache_core.app.offer_specs import offer_specs
from lmcache_core.app.plugins.plugin_fault import describe
from lmcache_tools.doctor.check_context import CheckContext
from lmcache_tools.doctor.probe_result import Level, ProbeResult


def offer_checks(context: CheckContext) -> Iterator[ProbeResult]:
    """Of everything that the configuration uses and that has a check."""
    for name, offer, settings in _used(context):
        if offer.check is not None:
            yield from _checked(name, offer.check, settings)


def _used(context: CheckContext) -> Iterator[tuple[str, Offer, Any]]:
    for adapter in context.adapters:
        yield f"adapter {adapter.name}", adapter.offer, adapter.settings
    try:
        specs = offer_specs(context.settings, context.plugins)
    except LMCacheError:  # `configuration_faults` says so
        return
    groups = (specs.subscribers, specs.request_modules, specs.http_routes, specs.services)
    policies = (specs.eviction_policy, specs.store_policy, specs.prefetch_policy)
    for spec in (*policies, *(each for group in groups for each in group)):
        yield f"{spec.kind.label} {spec.name}", context.plugins.offer(spec.kind, spec.name), spec.settings


def _checked(name: str, target: str, settings: Any) -> Iterator[ProbeResult]:
    module, _, function = target.partition(":")
    try:
        results = list(getattr(import_module(module), function)(settings))
        for result in results:
            level, text, remedy = CheckResult(*result)
            yield ProbeResult(name, Level(level), text, remedy)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin's boundary
        yield ProbeResult(
            name, Level.WARN, f"its check '{target}' failed: {describe(error)}", "tell the author of the plugin"
        )
