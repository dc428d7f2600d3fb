"""The checks that plugins bring with what they offer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from inspect import signature
from typing import Any

from lmcache_client.errors import LMCacheError
from lmcache_core import CheckResult, Offer
from lmcache_core.app.offer_specs import OfferSpec, offer_specs
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.plugins.plugin_fault import describe
from lmcache_tools.doctor.check_context import CheckContext
from lmcache_tools.doctor.probe_result import Level, ProbeResult


def offer_checks(context: CheckContext) -> Iterator[ProbeResult]:
    """Of everything that the configuration uses, and of commands, that has a check."""
    for name, offer, settings in _used(context):
        if offer.check is not None:
            yield from _checked(name, offer.check, settings, context)


def _used(context: CheckContext) -> Iterator[tuple[str, Offer, Any]]:
    specs: list[OfferSpec] = []
    for adapter in context.adapters:
        yield f"adapter {adapter.name}", adapter.offer, adapter.settings
        specs += adapter.serdes.serdes if adapter.serdes else ()
        specs += (adapter.eviction.eviction, adapter.eviction.policy) if adapter.eviction else ()
    for offer in context.plugins.offers(OfferKind.COMMAND):
        yield f"lmcache {offer.name.replace('.', ' ')}", offer, None
    with suppress(LMCacheError):  # `configuration_faults` says so
        asked = offer_specs(context.settings, context.plugins)
        specs += (asked.l1_memory,) if asked.l1_memory else ()
        specs += asked.eviction_policy, asked.store_policy, asked.prefetch_policy
        specs += *asked.subscribers, *asked.request_modules, *asked.http_routes, *asked.services
        specs += asked.transfer_channels
    for spec in specs:
        yield f"{spec.kind.label} {spec.name}", context.plugins.offer(spec.kind, spec.name), spec.settings


def _checked(name: str, target: str, settings: Any, context: CheckContext) -> Iterator[ProbeResult]:
    module, _, function = target.partition(":")

    def value_at(place: str) -> Any:
        added = [each.values for each in context.settings.added if place in type(each.values).model_fields]
        return getattr(added[0] if added else context.settings, place, None)

    try:
        check = getattr(import_module(module), function)
        results = list(check(*(settings, value_at)[: len(signature(check).parameters)]))
        for result in results:
            level, text, remedy = CheckResult(*result)
            yield ProbeResult(name, Level(level), text, remedy)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin's boundary
        yield ProbeResult(
            name, Level.WARN, f"its check '{target}' failed: {describe(error)}", "tell the author of the plugin"
        )
