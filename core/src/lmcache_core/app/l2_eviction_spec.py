"""Settings of an adapter's key `eviction`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from lmcache_client.errors import ConfigError
from lmcache_core.app.offer_specs import OfferSpec, offer_spec
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.settings import PluginSettings, validate
from lmcache_core.model.spelling import nearest

Ratio = Annotated[float, Field(gt=0, le=1)]
NEEDED = Capability.DELETE | Capability.USAGE


class L2EvictionSettings(PluginSettings):
    """When an adapter's objects are deleted, and which."""

    eviction_policy: Annotated[
        str | dict[str, Any],
        Field(description="Which objects go first: a name, or a JSON object with its `type` and its settings."),
    ]
    trigger_watermark: Annotated[Ratio, Field(description="Used share of the capacity at which eviction starts.")] = 0.8
    eviction_ratio: Annotated[Ratio, Field(description="Share of what is used that one eviction frees.")] = 0.2


@dataclass(frozen=True, slots=True)
class L2EvictionSpec:
    """Its settings, and the policy to open."""

    policy: OfferSpec
    trigger_watermark: float
    eviction_ratio: float


def l2_eviction_spec(values: Any, plugins: LoadedPlugins, where: str) -> L2EvictionSpec:
    """`where` is the path of the object.  Raises ConfigError that names it and the field."""
    if not isinstance(values, Mapping):
        raise ConfigError(f'{where} is {values!r:.80}: expected an object such as {{"eviction_policy": "LRU"}}')
    known = L2EvictionSettings.model_fields
    for name in values:
        if name not in known:
            guess = nearest(str(name), known)
            remedy = f"did you mean '{guess}'?" if guess else f"known: {', '.join(known)}"
            raise ConfigError(f"{where}.{name}: there is no such field; {remedy}")
    settings = validate(L2EvictionSettings, values, where)
    given = settings.eviction_policy
    name = given.get("type") if isinstance(given, dict) else given
    if not isinstance(name, str) or not name:
        raise ConfigError(f'{where}.eviction_policy: expected a name, or an object such as {{"type": "LRU"}}')
    own = {field: value for field, value in given.items() if field != "type"} if isinstance(given, dict) else {}
    policy = offer_spec(plugins, OfferKind.EVICTION_POLICY, name, own, f"{where}.eviction_policy")
    return L2EvictionSpec(policy, settings.trigger_watermark, settings.eviction_ratio)


def check_capabilities(name: str, capabilities: Capability) -> None:
    """Raises ConfigError where this adapter's objects cannot be evicted."""
    if missing := NEEDED & ~capabilities:
        words = " and ".join(str(flag.name) for flag in missing)
        raise ConfigError(f"adapter '{name}' cannot evict: it does not declare {words}; leave out its 'eviction'")
