"""What the configuration asks for besides adapters, checked against each thing's own settings.

A policy is named by its flag, as a word or as an object with its `type` and settings.  Subscribers, HTTP routes and
request modules that are active without being named take theirs from `--offer-settings`, and from the settings that their
plugins bring.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import structs

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core.app.plugins.catalogue import catalogue
from lmcache_core.app.plugins.discovery import Origin
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.settings import LoadedGroup, flag_of
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
_ADAPTER: Final = f"{OfferKind.L2_ADAPTER}:"
_TRANSFER_MODES: Final = ("engine_driven", "lmcache_driven")
Key = tuple[OfferKind, str]


class OfferSpec(msgspec.Struct, frozen=True):
    """One thing to open, with its settings checked."""

    kind: OfferKind
    name: str
    settings: PluginSettings | None
    needed: bool = True
    """False for what a third party's plugin makes active by being installed: the server starts without it if it must."""

    def open(self, plugins: LoadedPlugins, *context: Any) -> Any:
        """As `LoadedPlugins.open`."""
        return plugins.open(self.kind, self.name, self.settings, *context)

    def open_as(self, wanted: type[Any], plugins: LoadedPlugins, *context: Any) -> Any:
        """The same: a `wanted`.  Raises PluginContractError for anything else."""
        opened = self.open(plugins, *context)
        if not isinstance(opened, wanted):
            raise self.fault(plugins, f" opens as {type(opened).__name__}, not as {wanted.__name__}")
        return opened

    def fault(self, plugins: LoadedPlugins, what: str) -> PluginContractError:
        """An error that begins with the offer and its owner, and goes on with `what` it does against its contract."""
        plugin = plugins.owner(self.kind, self.name)
        return PluginContractError(plugin.name, f"{self.kind.label} '{self.name}' ({plugin.owner}){what}")

    @contextmanager
    def dispensable(self, plugins: LoadedPlugins) -> Iterator[None]:
        """Within it, the offer is opened: an error sets it aside, and passes only where the offer is needed."""
        try:
            yield
        except LMCacheError as error:
            if self.needed:
                raise
            plugins.set_aside(self.kind, self.name, error)


class OfferSpecs(msgspec.Struct, frozen=True):
    """Everything that is opened besides adapters."""

    l1_memory: OfferSpec | None
    """None: core's own."""
    eviction_policy: OfferSpec
    store_policy: OfferSpec
    prefetch_policy: OfferSpec
    subscribers: tuple[OfferSpec, ...]
    request_modules: tuple[OfferSpec, ...]
    http_routes: tuple[OfferSpec, ...]
    services: tuple[OfferSpec, ...]
    transfer_channels: tuple[OfferSpec, ...]
    """All that are offered: services open those that they use."""
    l2_adapters: tuple[str, ...]
    """Types of adapters that plugins' settings ask for."""


def offer_specs(settings: ServerSettings, plugins: LoadedPlugins) -> OfferSpecs:
    """Raises ConfigError that names the flag and the field, before anything is opened.  An offer that was not asked for is
    left out where its settings are wrong, and `plugins` records that."""
    given = {_key(key, plugins): values for key, values in settings.offer_settings.items()}
    asked = _Asked.of(settings, plugins, given)
    return OfferSpecs(
        _l1_memory(settings, plugins, asked),
        policy_spec(plugins, OfferKind.EVICTION_POLICY, settings.eviction_policy),
        policy_spec(plugins, OfferKind.STORE_POLICY, settings.l2_store_policy),
        policy_spec(plugins, OfferKind.PREFETCH_POLICY, settings.l2_prefetch_policy),
        _configured(settings, plugins, OfferKind.SUBSCRIBER, _subscribers(settings, plugins, asked), asked),
        _configured(settings, plugins, OfferKind.REQUEST_MODULE, _request_modules(settings, plugins, asked), asked),
        _configured(settings, plugins, OfferKind.HTTP_ROUTES, _active(plugins, OfferKind.HTTP_ROUTES, asked), asked),
        _configured(settings, plugins, OfferKind.SERVICE, _active(plugins, OfferKind.SERVICE, asked), asked),
        _configured(settings, plugins, OfferKind.TRANSFER_CHANNEL, _channels(plugins, asked), asked),
        tuple(asked.adapters),
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


def policy_spec(plugins: LoadedPlugins, kind: OfferKind, given: str | Mapping[str, Any], where: str = "") -> OfferSpec:
    """A policy by its name, or by an object with its `type` and settings.  `where`: the flag unless it is given."""
    values = {} if isinstance(given, str) else {field: value for field, value in given.items() if field != "type"}
    name = given if isinstance(given, str) else given["type"]
    return offer_spec(plugins, kind, name, values, where or _BY_THEIR_FLAG[kind])


class _Asked(msgspec.Struct, frozen=True):
    """What `--offer-settings` and the settings of plugins ask of offers, by kind and name."""

    values: Mapping[Key, Mapping[str, Any]]
    where: Mapping[Key, str]
    """What begins an error about them: the flag, the variable or the key that gave them."""
    off: Set[Key]
    adapters: Sequence[str] = ()
    """Types of L2 adapters to have, without settings."""

    @classmethod
    def of(cls, settings: ServerSettings, plugins: LoadedPlugins, given: Mapping[Key, Mapping[str, Any]]) -> _Asked:
        """Raises ConfigError where a value is given twice or two plugins configure one offer, and what a plugin raises."""
        values = {key: dict(each) for key, each in given.items()}
        where = {key: f"{_FLAG} {key[0]}:{key[1]}" for key in given}
        off: set[Key] = set()
        adapters: list[str] = []
        givers: dict[Key, tuple[LoadedGroup, str, bool]] = {}
        for added in settings.added:
            names = frozenset(name for name in added.group.model.model_fields if name in added.values.model_fields_set)
            flags = [flag_of(name, field) for name, field in added.group.model.model_fields.items() if name in names]
            said = ", ".join(flags) or added.group.title
            for word, own in added.group.applied(added.values, names).items():
                if word.startswith(_ADAPTER):
                    adapters.append(word.removeprefix(_ADAPTER))
                    continue
                key = _key(word, plugins, said)
                first, by_first, is_off = givers.setdefault(key, (added.group, said, own is None))
                if first.plugin != added.group.plugin and not (is_off and own is None):
                    raise ConfigError(_two_givers(key, (first, by_first), (added.group, said)))
                if own is None:
                    off.add(key)
                    continue
                if both := next((name for name in own if name in given.get(key, ())), None):
                    twice = next((flag for flag in flags if flag == f"--{both.replace('_', '-')}"), " or ".join(flags))
                    raise ConfigError(f"{twice} and '{both}' of {where[key]} are the same; leave one of them out")
                values[key] = {**values.get(key, {}), **own}
                where.setdefault(key, said)
        return cls(values, where, off, adapters)

    def names(self, kind: OfferKind) -> list[str]:
        return [name for of, name in self.values if of is kind]


def _two_givers(key: Key, *givers: tuple[LoadedGroup, str]) -> str:
    """Why the settings of two plugins for one offer are an error: neither plugin knows what the other one asks for."""
    named = [(flags, group.plugin) for group, flags in givers if group.plugin]
    both = " and ".join(f"{flags} of plugin '{plugin.name}' ({plugin.owner})" for flags, plugin in named)
    remedy = " or ".join(f"--no-plugin {plugin.name}" for _, plugin in named)
    return f"{both} both configure {key[0]}:{key[1]}; leave one of them out, or one plugin with {remedy}"


def _key(text: str, plugins: LoadedPlugins, where: str = _FLAG) -> Key:
    word, colon, name = text.partition(":")
    if not (colon and name and word in list(OfferKind)):
        raise ConfigError(f"{where}: '{text}' is not of the form kind:name, such as subscriber:log")
    kind = OfferKind(word)
    if flag := _BY_THEIR_FLAG.get(kind):
        example = json.dumps(_example(kind, name))
        raise ConfigError(f"{where}: '{text}': these settings go with the name: {flag} '{example}'")
    if kind is OfferKind.COMMAND:
        raise ConfigError(f"{where}: '{text}': commands have flags of their own, see `lmcache {name} --help`")
    try:
        plugins.offer(kind, name)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return kind, name


def _example(kind: OfferKind, name: str) -> dict[str, Any]:
    named = {"type": name, "...": "..."}
    return {"type": "...", "serde": named} if kind is OfferKind.SERDE else named


def _l1_memory(settings: ServerSettings, plugins: LoadedPlugins, asked: _Asked) -> OfferSpec | None:
    """The one whose settings were given, if any.  Raises ConfigError where there are several, or settings about core's
    memory beside it."""
    specs = _configured(settings, plugins, OfferKind.L1_MEMORY, _active(plugins, OfferKind.L1_MEMORY, asked), asked)
    if not specs:
        return None
    where = [asked.where[OfferKind.L1_MEMORY, spec.name] for spec in specs]
    if len(specs) > 1:
        raise ConfigError(f"{where[0]} and {where[1]}: L1 lies in one memory; leave one of them out")
    of_core = {
        "--shm-name": bool(settings.shm_name),
        "--l1-use-hugepages": settings.l1_use_hugepages,
        "--l1-numa": settings.l1_numa != "off",
    }
    if flag := next((flag for flag, is_given in of_core.items() if is_given), None):
        raise ConfigError(f"{where[0]}: L1 does not lie in core's memory, which {flag} is about; leave one of them out")
    return specs[0]


def _configured(
    settings: ServerSettings, plugins: LoadedPlugins, kind: OfferKind, names: Iterable[str], asked: _Asked
) -> tuple[OfferSpec, ...]:
    specs = []
    flags = {}
    if kind is OfferKind.REQUEST_MODULE:
        flags = dict.fromkeys(settings.engine_type, "--engine-type")
        flags[settings.supported_transfer_mode] = "--supported-transfer-mode"
    for name in names:
        key = kind, name
        where = asked.where.get(key) or flags.get(name) or f"{_FLAG} {kind}:{name}"
        needed = key in asked.values or name in flags or _is_needed(settings, plugins, kind, name)
        try:
            spec = offer_spec(plugins, kind, name, asked.values.get(key, {}), where)
        except LMCacheError as error:
            if needed:
                raise
            plugins.set_aside(kind, name, error)
        else:
            specs.append(structs.replace(spec, needed=needed))
    return tuple(specs)


def _is_needed(settings: ServerSettings, plugins: LoadedPlugins, kind: OfferKind, name: str) -> bool:
    """Does the configuration ask for its plugin, or is it core's?"""
    owner = plugins.owner(kind, name)
    return owner.origin is Origin.BUILTIN or owner.name in settings.plugins


def _active(plugins: LoadedPlugins, kind: OfferKind, asked: _Asked) -> list[str]:
    """Those that are active by themselves, and those whose settings were given; without those that are switched off."""
    names = [offer.name for offer in plugins.defaults(kind)] + asked.names(kind)
    return [name for name in dict.fromkeys(names) if (kind, name) not in asked.off]


def _channels(plugins: LoadedPlugins, asked: _Asked) -> list[str]:
    names = [offer.name for offer in plugins.offers(OfferKind.TRANSFER_CHANNEL)]
    return [name for name in names if (OfferKind.TRANSFER_CHANNEL, name) not in asked.off]


def _subscribers(settings: ServerSettings, plugins: LoadedPlugins, asked: _Asked) -> list[str]:
    if settings.disable_observability:
        return []
    return [
        name
        for name in _active(plugins, OfferKind.SUBSCRIBER, asked)
        if not (name == "log" and settings.disable_logging)
    ]


def _request_modules(settings: ServerSettings, plugins: LoadedPlugins, asked: _Asked) -> list[str]:
    """Those that are active, and those that a flag names."""
    names = [offer.name for offer in plugins.defaults(OfferKind.REQUEST_MODULE)]
    mode = settings.supported_transfer_mode
    if mode in _TRANSFER_MODES:
        names.append(mode)
    else:
        offered = {offer.name for offer in plugins.offers(OfferKind.REQUEST_MODULE)}
        names += [each for each in _TRANSFER_MODES if each in offered]
    names += [name for name in settings.engine_type if name != "default"]
    for name in asked.names(OfferKind.REQUEST_MODULE):
        if name in _TRANSFER_MODES and name not in names:
            where = asked.where[OfferKind.REQUEST_MODULE, name]
            raise ConfigError(
                f"{where}: request module '{name}' is not in use with --supported-transfer-mode {mode}; "
                f"start the server with --supported-transfer-mode auto or {name}, or leave it out"
            )
        names.append(name)
    return [name for name in dict.fromkeys(names) if (OfferKind.REQUEST_MODULE, name) not in asked.off]


def operation_remedy(plugins: LoadedPlugins, operation: str) -> str:
    """What an operator can do so that an operation without a handler is answered; empty where there is no remedy."""
    for offer in plugins.offers(OfferKind.REQUEST_MODULE):
        if operation in offer.operations:
            flag = "supported-transfer-mode auto or" if offer.name in _TRANSFER_MODES else "engine-type"
            return f"start the server with --{flag} {offer.name}"
    known = catalogue()
    module = known.operations.get(operation)
    return f"pip install {known.offers[module]} and start the server again" if module else ""
