"""What the configuration asks for besides adapters, checked against each thing's own settings.

A policy is named by its flag, as a word or as an object with its `type` and settings.  Subscribers, HTTP routes and
request modules that are active without being named take theirs from `--offer-settings`; some flags are settings of
subscribers, too.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core.app.module_flags import check_module_flags, with_module_flags
from lmcache_core.app.observability_flags import METRICS, check_uses, switched_on, with_flags
from lmcache_core.app.plugins.discovery import Origin
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.contracts.settings import PluginSettings, validate
from lmcache_core.model.errors import PluginContractError

if TYPE_CHECKING:
    from lmcache_core.app.settings import ServerSettings

logger = logging.getLogger(__name__)

_FLAG: Final = "--offer-settings"
_BY_THEIR_FLAG: Final = {
    OfferKind.L2_ADAPTER: "--l2-adapter",
    OfferKind.SERDE: "--l2-adapter",
    OfferKind.EVICTION_POLICY: "--eviction-policy",
    OfferKind.STORE_POLICY: "--l2-store-policy",
    OfferKind.PREFETCH_POLICY: "--l2-prefetch-policy",
}
_SIDECAR: Final = "sidecar"
_TRANSFER_MODES: Final = ("engine_driven", "lmcache_driven")


@dataclass(frozen=True, slots=True)
class OfferSpec:
    """One thing to open, with its settings checked."""

    kind: OfferKind
    name: str
    settings: PluginSettings | None
    needed: bool = True
    """False for what a stranger's plugin makes active by being installed: the server starts without it if it must."""

    def open(self, plugins: LoadedPlugins, *context: Any) -> Any:
        """As `LoadedPlugins.open`."""
        return plugins.open(self.kind, self.name, self.settings, *context)

    def open_as(self, wanted: type[Any], plugins: LoadedPlugins, *context: Any) -> Any:
        """The same: a `wanted`.  Raises PluginContractError for anything else."""
        opened = self.open(plugins, *context)
        if not isinstance(opened, wanted):
            plugin = plugins.owner(self.kind, self.name)
            raise PluginContractError(
                plugin.name,
                f"{self.kind.label} '{self.name}' ({plugin.owner}) opens as {type(opened).__name__}, "
                f"which is no {wanted.__name__}",
            )
        return opened


@dataclass(frozen=True, slots=True)
class OfferSpecs:
    """Everything that is opened besides adapters."""

    eviction_policy: OfferSpec
    store_policy: OfferSpec
    prefetch_policy: OfferSpec
    subscribers: tuple[OfferSpec, ...]
    request_modules: tuple[OfferSpec, ...]
    http_routes: tuple[OfferSpec, ...]
    services: tuple[OfferSpec, ...]


def offer_specs(settings: ServerSettings, plugins: LoadedPlugins) -> OfferSpecs:
    """Raises ConfigError that names the flag and the field, before anything is opened.  What nobody asked for is left out
    where its settings are wrong, and `plugins` is told."""
    given = {_key(key, plugins): values for key, values in settings.offer_settings.items()}
    subscribers, modules = _subscribers(settings, plugins, given), _request_modules(settings, plugins, given)
    check_module_flags(settings, plugins, modules)
    return OfferSpecs(
        _policy(plugins, OfferKind.EVICTION_POLICY, settings.eviction_policy),
        _policy(plugins, OfferKind.STORE_POLICY, settings.l2_store_policy),
        _policy(plugins, OfferKind.PREFETCH_POLICY, settings.l2_prefetch_policy),
        _configured(settings, plugins, OfferKind.SUBSCRIBER, subscribers, given),
        _configured(settings, plugins, OfferKind.REQUEST_MODULE, modules, given),
        _configured(settings, plugins, OfferKind.HTTP_ROUTES, _http_routes(settings, plugins, given), given),
        _configured(settings, plugins, OfferKind.SERVICE, _services(settings, plugins, given), given),
    )


def offer_spec(plugins: LoadedPlugins, kind: OfferKind, name: str, values: Mapping[str, Any], where: str) -> OfferSpec:
    """The offer of this name with these settings.  Raises ConfigError that begins with `where`."""
    model = _model(plugins, kind, name, where)
    if values and model is None:
        raise ConfigError(f"{where}: {kind.label} '{name}' takes no settings; leave out '{next(iter(values))}'")
    return OfferSpec(kind, name, validate(model, values, where) if model else None)


def _model(plugins: LoadedPlugins, kind: OfferKind, name: str, where: str) -> type[PluginSettings] | None:
    try:
        return plugins.model(kind, name)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _policy(plugins: LoadedPlugins, kind: OfferKind, given: str | Mapping[str, Any]) -> OfferSpec:
    values = {} if isinstance(given, str) else {field: value for field, value in given.items() if field != "type"}
    return offer_spec(plugins, kind, given if isinstance(given, str) else given["type"], values, _BY_THEIR_FLAG[kind])


Given = Mapping[tuple[OfferKind, str], Mapping[str, Any]]


def _key(text: str, plugins: LoadedPlugins) -> tuple[OfferKind, str]:
    word, colon, name = text.partition(":")
    if not (colon and name and word in list(OfferKind)):
        raise ConfigError(f"{_FLAG}: '{text}' is not of the form kind:name, such as subscriber:log")
    kind = OfferKind(word)
    if flag := _BY_THEIR_FLAG.get(kind):
        example = json.dumps(_example(kind, name))
        raise ConfigError(f"{_FLAG}: '{text}': these settings go with the name: {flag} '{example}'")
    if kind is OfferKind.COMMAND:
        raise ConfigError(f"{_FLAG}: '{text}': commands have flags of their own, see `lmcache {name} --help`")
    try:
        plugins.offer(kind, name)
    except ConfigError as error:
        raise ConfigError(f"{_FLAG}: {error}") from None
    return kind, name


def _example(kind: OfferKind, name: str) -> dict[str, Any]:
    named = {"type": name, "...": "..."}
    return {"type": "...", "serde": named} if kind is OfferKind.SERDE else named


def _configured(
    settings: ServerSettings, plugins: LoadedPlugins, kind: OfferKind, names: Iterable[str], given: Given
) -> tuple[OfferSpec, ...]:
    specs = []
    flags = switched_on(settings) if kind is OfferKind.SUBSCRIBER else {}
    if kind is OfferKind.REQUEST_MODULE:
        flags = dict.fromkeys(settings.engine_type, "--engine-type")
        flags[settings.supported_transfer_mode] = "--supported-transfer-mode"
    if kind is OfferKind.SERVICE and settings.runtime_plugin_locations:
        flags[_SIDECAR] = "--runtime-plugin-locations"
        if settings.safe_mode:
            logger.warning("--safe-mode: the programs of --runtime-plugin-locations are not started")
    for name in names:
        where = flags[name] if name in flags and (kind, name) not in given else f"{_FLAG} {kind}:{name}"
        needed = (kind, name) in given or name in flags or _is_needed(settings, plugins, kind, name)
        values = given.get((kind, name), {})
        if kind is OfferKind.SERVICE and name in flags:
            values = {
                **values,
                "locations": settings.runtime_plugin_locations,
                "config": settings.runtime_plugin_config,
            }
        try:
            if kind is OfferKind.SUBSCRIBER:
                values = with_flags(settings, name, _model(plugins, kind, name, where), values)
            elif kind is OfferKind.REQUEST_MODULE:
                values = with_module_flags(settings, name, _model(plugins, kind, name, where), values)
            spec = offer_spec(plugins, kind, name, values, where)
        except LMCacheError as error:
            if needed:
                raise
            plugins.set_aside(kind, name, error)
        else:
            specs.append(replace(spec, needed=needed))
    return tuple(specs)


def _is_needed(settings: ServerSettings, plugins: LoadedPlugins, kind: OfferKind, name: str) -> bool:
    """Did somebody ask for its plugin, or is it core's?"""
    owner = plugins.owner(kind, name)
    return owner.origin is Origin.BUILTIN or owner.name in settings.plugins


def _subscribers(settings: ServerSettings, plugins: LoadedPlugins, given: Given) -> tuple[str, ...]:
    """Those that are active by themselves, those that a flag asks for, and those whose settings were given."""
    if settings.disable_observability:
        return ()
    names = [offer.name for offer in plugins.defaults(OfferKind.SUBSCRIBER)]
    names += [name for name in switched_on(settings) if name not in names]
    names += [name for kind, name in given if kind is OfferKind.SUBSCRIBER and name not in names]
    check_uses(settings, names)
    off = {name for name, is_off in (("log", settings.disable_logging), (METRICS, settings.disable_metrics)) if is_off}
    return tuple(name for name in names if name not in off)


def _http_routes(settings: ServerSettings, plugins: LoadedPlugins, given: Given) -> tuple[str, ...]:
    """Those that are active by themselves, and those whose settings were given."""
    if not settings.http_enabled:
        return ()
    names = [offer.name for offer in plugins.defaults(OfferKind.HTTP_ROUTES)]
    return tuple(dict.fromkeys([*names, *(name for kind, name in given if kind is OfferKind.HTTP_ROUTES)]))


def _services(settings: ServerSettings, plugins: LoadedPlugins, given: Given) -> tuple[str, ...]:
    """Those that are active by themselves, those that a flag asks for, and those whose settings were given."""
    names = [offer.name for offer in plugins.defaults(OfferKind.SERVICE)]
    if settings.runtime_plugin_locations and not settings.safe_mode:
        names.append(_SIDECAR)
    return tuple(dict.fromkeys([*names, *(name for kind, name in given if kind is OfferKind.SERVICE)]))


def _request_modules(settings: ServerSettings, plugins: LoadedPlugins, given: Given) -> tuple[str, ...]:
    """Those that are active by themselves, those that a flag asks for, and those whose settings were given."""
    names = [offer.name for offer in plugins.defaults(OfferKind.REQUEST_MODULE)]
    mode = settings.supported_transfer_mode
    if mode in _TRANSFER_MODES:
        names.append(mode)
    else:
        offered = {offer.name for offer in plugins.offers(OfferKind.REQUEST_MODULE)}
        names += [each for each in _TRANSFER_MODES if each in offered]
    names += [name for name in settings.engine_type if name != "default"]
    for kind, name in given:
        if kind is OfferKind.REQUEST_MODULE and name in _TRANSFER_MODES and name not in names:
            raise ConfigError(f"{_FLAG}: request module '{name}' is not in use with --supported-transfer-mode {mode}")
        names += [name] if kind is OfferKind.REQUEST_MODULE else []
    return tuple(dict.fromkeys(names))
