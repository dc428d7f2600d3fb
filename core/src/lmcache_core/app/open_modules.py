"""Opens request modules and collects their operations.  One that cannot be opened, or answers what another one
answers, stops the start only if it was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from lmcache_core.app.offer_specs import OfferSpec
from lmcache_core.app.plugins.discovery import Origin
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.plugin_fault import close_logged, describe
from lmcache_core.contracts.operation import Handler
from lmcache_core.contracts.request_module import ModuleContext, RequestModule
from lmcache_core.model.errors import PluginContractError


class OpenedModules(NamedTuple):
    modules: dict[str, RequestModule]
    handlers: list[Handler]


def open_request_modules(
    specs: Sequence[OfferSpec], plugins: LoadedPlugins, context: ModuleContext, undo: ExitStack
) -> OpenedModules:
    """Those that open, which `undo` closes.  Raises LMCacheError for one that is needed and cannot."""
    opened = OpenedModules({}, [])
    answered: dict[str | int, OfferSpec] = {}
    for spec in sorted(specs, key=lambda spec: _rank(spec, plugins)):
        with spec.dispensable(plugins), ExitStack() as on_failure:
            module: RequestModule = spec.open_as(RequestModule, plugins, context)
            on_failure.callback(close_logged, f"module={spec.name}", module.close)
            handlers = _handlers(module, spec, plugins)
            answered |= _labels(handlers, spec, answered, plugins)
            opened.modules[spec.name] = module
            opened.handlers.extend(handlers)
            undo.push(on_failure.pop_all())
    return opened


def _rank(spec: OfferSpec, plugins: LoadedPlugins) -> tuple[bool, bool]:
    """Core's first, then what was asked for: a later one cannot take their operations."""
    return plugins.owner(spec.kind, spec.name).origin is not Origin.BUILTIN, not spec.needed


def _handlers(module: RequestModule, spec: OfferSpec, plugins: LoadedPlugins) -> list[Handler]:
    try:
        handlers = list(module.handlers())
    except (Exception, SystemExit) as error:
        raise spec.fault(plugins, f": handlers() failed: {describe(error)}") from error
    for handler in handlers:
        if not isinstance(handler, Handler):
            raise spec.fault(plugins, f": handlers() has {type(handler).__name__} where Handler belongs")
    return handlers


def _labels(
    handlers: Sequence[Handler], spec: OfferSpec, answered: dict[str | int, OfferSpec], plugins: LoadedPlugins
) -> dict[str | int, OfferSpec]:
    """The names and numbers that the module answers to.  Raises PluginContractError where one is answered already."""
    labels: dict[str | int, OfferSpec] = {}
    for operation in (handler.operation for handler in handlers):
        for label in (operation.name, operation.wire_id):
            if label is None:
                continue
            if other := answered.get(label) or labels.get(label):
                plugin, rival = plugins.owner(spec.kind, spec.name), plugins.owner(other.kind, other.name)
                who = f"request modules '{other.name}' ({rival.owner}) and '{spec.name}' ({plugin.owner}) both answer"
                if other is spec:
                    who = f"request module '{spec.name}' ({plugin.owner}) twice answers"
                raise PluginContractError(
                    plugin.name, f"{who} operation {label!r}; rename one, or leave its module out"
                )
            labels[label] = spec
    return labels
