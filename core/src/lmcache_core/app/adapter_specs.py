"""What `--l2-adapter` asks for, checked against the adapter's own settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmcache_core.app.loaded_plugins import LoadedPlugins
from lmcache_core.app.offer_kind import OfferKind
from lmcache_core.contracts.offer import Offer
from lmcache_core.contracts.settings import PluginSettings, validate
from lmcache_core.model.errors import ConfigError
from lmcache_core.model.spelling import nearest

_NOT_YET = ("eviction", "serde")


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """One storage backend to open.  `name` is unique among the adapters of this server: the type, numbered from the
    second of its type on."""

    name: str
    offer: Offer
    settings: PluginSettings | None
    persist_enabled: bool


def adapter_specs(given: Sequence[Mapping[str, Any]], plugins: LoadedPlugins) -> tuple[AdapterSpec, ...]:
    """The adapters in the order of the configuration.  Raises ConfigError that names `--l2-adapter[i]` and the field."""
    types: list[str] = []
    specs = []
    for index, values in enumerate(given):
        where = f"--l2-adapter[{index}]"
        kind = _type(values, where)
        try:
            offer = plugins.offer(OfferKind.L2_ADAPTER, kind)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        model = plugins.model(OfferKind.L2_ADAPTER, kind)
        own, persist = _split(values, where, set(model.model_fields) if model else set())
        if own and model is None:
            raise ConfigError(f"{where}: adapter '{kind}' takes no settings; leave out '{next(iter(own))}'")
        types.append(kind)
        number = types.count(kind)
        name = kind if number == 1 else f"{kind}-{number}"
        specs.append(AdapterSpec(name, offer, validate(model, own, where) if model else None, persist))
    return tuple(specs)


def _type(values: Mapping[str, Any], where: str) -> str:
    kind = values.get("type")
    if isinstance(kind, str) and kind:
        return kind
    if kind is not None:
        raise ConfigError(f"{where}: field 'type' must be the name of an adapter")
    guess = nearest("type", values)
    raise ConfigError(f"{where}: field 'type' is missing" + (f"; did you mean it by '{guess}'?" if guess else ""))


def _split(values: Mapping[str, Any], where: str, fields: set[str]) -> tuple[dict[str, Any], bool]:
    """The adapter's own fields, and the common ones."""
    for name in _NOT_YET:
        if values.get(name) is not None:
            raise ConfigError(f"{where}: field '{name}' is not supported by this version; leave it out")
    persist = values.get("persist_enabled", True)
    if not isinstance(persist, bool):
        raise ConfigError(f"{where}: field 'persist_enabled' is {persist!r}: must be true or false")
    own = {name: value for name, value in values.items() if name not in ("type", "persist_enabled", *_NOT_YET)}
    if "persist_enabled" in values and "persist_enabled" in fields:
        own["persist_enabled"] = persist
    return own, persist
