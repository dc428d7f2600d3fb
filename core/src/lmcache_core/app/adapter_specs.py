"""What `--l2-adapter` asks for, checked against the adapter's own settings."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import count
from typing import Annotated, Any

import msgspec
from pydantic import BeforeValidator, Field

from lmcache_client.errors import ConfigError
from lmcache_core.app.offer_specs import OfferSpec, policy_spec
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.serdes import SERDE_FIELDS, SerdeSpecs, serde_specs
from lmcache_core.app.setting_groups import name_or_object
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.offer import Offer
from lmcache_core.contracts.settings import PluginSettings, validate
from lmcache_core.model.spelling import nearest

_COMMON = ("type", "eviction", "persist_enabled", *SERDE_FIELDS)


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


def adapter_specs(given: Sequence[Mapping[str, Any]], plugins: LoadedPlugins) -> tuple[AdapterSpec, ...]:
    """The adapters in the order of the configuration.  Raises ConfigError that names `--l2-adapter[i]` and the field."""
    specs: list[AdapterSpec] = []
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
    given_eviction = values.get("eviction")
    eviction = None if given_eviction is None else l2_eviction_spec(given_eviction, plugins, f"{where}.eviction")
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


def _type(values: Mapping[str, Any], where: str) -> str:
    kind = values.get("type")
    if isinstance(kind, str) and kind:
        return kind
    if kind is not None:
        raise ConfigError(f"{where}: field 'type' must be the name of an adapter")
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


Ratio = Annotated[float, Field(gt=0, le=1)]
NEEDED = Capability.DELETE | Capability.USAGE


class L2EvictionSettings(PluginSettings):
    """When an adapter's objects are deleted, and which."""

    eviction_policy: Annotated[
        str | dict[str, Any],
        BeforeValidator(name_or_object),
        Field(description="Which objects go first: a name, or a JSON object with its `type` and its settings."),
    ]
    trigger_watermark: Annotated[Ratio, Field(description="Used share of the capacity at which eviction starts.")] = 0.8
    eviction_ratio: Annotated[Ratio, Field(description="Share of what is used that one eviction frees.")] = 0.2


class L2EvictionSpec(msgspec.Struct, frozen=True):
    """Its settings, and the policy to open."""

    policy: OfferSpec
    trigger_watermark: float
    eviction_ratio: float


def l2_eviction_spec(values: Any, plugins: LoadedPlugins, where: str) -> L2EvictionSpec:
    """`where` is the path of the object.  Raises ConfigError that names it and the field."""
    if not isinstance(values, Mapping):
        raise ConfigError(f'{where} is {values!r:.80}: expected an object such as {{"eviction_policy": "LRU"}}')
    settings = validate(L2EvictionSettings, values, where)
    policy = policy_spec(plugins, OfferKind.EVICTION_POLICY, settings.eviction_policy, f"{where}.eviction_policy")
    return L2EvictionSpec(policy, settings.trigger_watermark, settings.eviction_ratio)


def check_capabilities(name: str, capabilities: Capability) -> None:
    """Raises ConfigError where this adapter's objects cannot be evicted."""
    if missing := NEEDED & ~capabilities:
        words = " and ".join(str(flag.name) for flag in missing)
        raise ConfigError(f"adapter '{name}' cannot evict: it does not declare {words}; leave out its 'eviction'")
