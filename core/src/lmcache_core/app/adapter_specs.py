"""What `--l2-adapter` asks for, checked against the adapter's own settings."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import count
from typing import Any, Final

import msgspec

from lmcache_client.errors import ConfigError
from lmcache_core.app.offer_specs import OfferSpec, offer_spec, policy_spec
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.serdes import SERDE_FIELDS, SerdeSpecs, serde_specs
from lmcache_core.app.setting_groups import name_or_object
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.l2_eviction import L2EvictionSettings
from lmcache_core.contracts.offer import Offer
from lmcache_core.contracts.settings import PluginSettings, validate
from lmcache_core.model.spelling import nearest

_EVICTION: Final = "eviction"
_L2_EVICTION: Final = OfferKind("l2_eviction")
_WATERMARK: Final = "watermark"
"""The eviction that an object without `type` asks for."""
_COMMON = ("type", _EVICTION, "persist_enabled", *SERDE_FIELDS)


class AdapterSpec(msgspec.Struct, frozen=True):
    """One storage backend to open.  `name` is unique among the adapters of this server: the type, numbered from the
    second of its type on."""

    name: str
    offer: Offer
    settings: PluginSettings | None
    eviction: L2EvictionSpec | None = None
    serdes: SerdeSpecs | None = None
    given: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The object as it was given, secrets and all."""


def adapter_specs(
    given: Sequence[Mapping[str, Any]], plugins: LoadedPlugins, first: Sequence[str] = ()
) -> tuple[AdapterSpec, ...]:
    """The adapters in the order of the configuration, and before them those of the types `first` that are not in it.  Raises
    ConfigError that names `--l2-adapter[i]` and the field."""
    added = [kind for kind in first if kind not in [values.get("type") for values in given]]
    specs = [adapter_spec({"type": kind}, plugins, f"adapter '{kind}'", ()) for kind in added]
    for index, values in enumerate(given):
        taken = [spec.name for spec in specs]
        specs.append(adapter_spec(values, plugins, f"--l2-adapter[{index}]", taken))
    return tuple(specs)


def adapter_spec(values: Mapping[str, Any], plugins: LoadedPlugins, where: str, taken: Container[str]) -> AdapterSpec:
    """One adapter, with a name that is not taken.  Raises ConfigError that begins with `where` and names the field."""
    kind = _type(values, where)
    try:
        offer = plugins.offer(OfferKind.L2_ADAPTER, kind)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    model = plugins.model(OfferKind.L2_ADAPTER, kind)
    own = _own_fields(values, where, offer, set(model.model_fields) if model else set())
    if own and model is None:
        raise ConfigError(f"{where}: adapter '{kind}' takes no settings; leave out '{next(iter(own))}'")
    given_eviction = values.get(_EVICTION)
    eviction = None if given_eviction is None else l2_eviction_spec(given_eviction, plugins, f"{where}.eviction")
    if eviction is not None and Capability.READ_ONLY in offer.capabilities:
        raise ConfigError(
            f"{where}: field 'eviction': adapter '{kind}' is read only, and its objects are another one's"
        )
    settings = validate(model, own, where) if model else None
    check_shared(where, offer, settings, eviction)
    serdes = serde_specs(values, plugins, where)
    return AdapterSpec(free_name(kind, taken), offer, settings, eviction, serdes, values)


def check_shared(where: str, offer: Offer, settings: PluginSettings | None, eviction: L2EvictionSpec | None) -> None:
    """Raises ConfigError where several servers would evict from one backend, or the adapter does not let several use it, by
    the settings that its offer names."""
    facts = offer.storage
    if facts is None or not facts.shared or getattr(settings, facts.shared, None) is not True:
        return
    if Capability.SHARED not in offer.capabilities | offer.optional_capabilities and not offer.wraps:
        raise ConfigError(
            f"{where}: field '{facts.shared}' is true, but adapter '{offer.name}' keeps a backend to one server; "
            "leave it out, and give each server a place of its own"
        )
    if eviction is not None and not (facts.owner and getattr(settings, facts.owner, None) is True):
        raise ConfigError(
            f"{where}: field 'eviction' is for the owner of a shared backend: set 'owner' to true on the one server that is "
            "to evict, and leave 'eviction' out on the others"
        )


def free_name(kind: str, taken: Container[str]) -> str:
    """That of the next adapter of this type."""
    names = (kind if number == 1 else f"{kind}-{number}" for number in count(1))
    return next(name for name in names if name not in taken)


def _type(values: Mapping[str, Any], where: str, of: str = "an adapter") -> str:
    kind = values.get("type")
    if isinstance(kind, str) and kind:
        return kind
    if kind is not None:
        raise ConfigError(f"{where}: field 'type' must be the name of {of}")
    guess = nearest("type", values)
    raise ConfigError(f"{where}: field 'type' is missing" + (f"; did you mean it by '{guess}'?" if guess else ""))


def _own_fields(values: Mapping[str, Any], where: str, offer: Offer, fields: set[str]) -> dict[str, Any]:
    """What the adapter is opened with.

    `persist_enabled: false` asks that nothing outlives the server.  Only the adapter can see to that, so one that has the
    field gets it; for one that keeps nothing anyway there is nothing to do; and one that keeps what it stored must not be
    believed to have deleted it."""
    own = {name: value for name, value in values.items() if name not in _COMMON}
    persist = values.get("persist_enabled", True)
    if not isinstance(persist, bool):
        raise ConfigError(f"{where}: field 'persist_enabled' is {persist!r}: must be true or false")
    if "persist_enabled" in fields:
        if "persist_enabled" in values:
            own["persist_enabled"] = persist
    elif not persist and offer.wraps:
        raise ConfigError(f"{where}: field 'persist_enabled' belongs into the object that names the adapter inside")
    elif not persist and Capability.DURABLE in offer.capabilities:
        raise ConfigError(
            f"{where}: field 'persist_enabled' is False, but adapter '{offer.name}' always keeps what it stored; "
            "leave the field out, and delete its data yourself after the server has stopped"
        )
    return own


class L2EvictionSpec(msgspec.Struct, frozen=True):
    """The eviction to open, and its policy."""

    eviction: OfferSpec
    policy: OfferSpec


def l2_eviction_spec(values: Any, plugins: LoadedPlugins, where: str) -> L2EvictionSpec:
    """`where` is the path of the object.  Raises ConfigError that names it and the field."""
    if not isinstance(values, Mapping):
        raise ConfigError(f'{where} is {values!r:.80}: expected an object such as {{"eviction_policy": "LRU"}}')
    name = _type({"type": _WATERMARK, **values}, where, "an eviction of L2")
    own = {field: value for field, value in values.items() if field != "type"}
    eviction = offer_spec(plugins, _L2_EVICTION, name, own, where)
    if not isinstance(eviction.settings, L2EvictionSettings):
        raise eviction.fault(plugins, " has a settings model that does not extend L2EvictionSettings")
    try:
        named = name_or_object(eviction.settings.eviction_policy)
    except ValueError as error:
        raise ConfigError(f"{where}: field 'eviction_policy': {error}") from None
    return L2EvictionSpec(eviction, policy_spec(plugins, OfferKind.EVICTION_POLICY, named, f"{where}.eviction_policy"))
