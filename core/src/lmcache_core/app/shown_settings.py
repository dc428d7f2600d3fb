"""Every setting as an operator may see it: its value without secrets, and who gave it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from lmcache_client.errors import LMCacheError
from lmcache_core.app.masking import MASK, masked, secrets_in
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.serdes import serdes_given
from lmcache_core.app.settings import ServerSettings, SettingSource, flag_of, variable_of
from lmcache_core.contracts.server_control import ShownSetting
from lmcache_core.contracts.settings import is_secret

_KINDS: Final = {
    "l2_adapter": OfferKind.L2_ADAPTER,
    "eviction_policy": OfferKind.EVICTION_POLICY,
    "l2_store_policy": OfferKind.STORE_POLICY,
    "l2_prefetch_policy": OfferKind.PREFETCH_POLICY,
}
"""Settings that are objects with a `type`, which names the offer whose settings model knows its secrets."""


def shown_settings(settings: ServerSettings, plugins: LoadedPlugins) -> list[ShownSetting]:
    """Core's, then those of plugins."""
    rows = []
    for values, name, field in _fields(settings):
        source = settings.source_of(name)
        given_by = {
            SettingSource.FLAG: flag_of(name, field),
            SettingSource.ENVIRONMENT: variable_of(name),
            SettingSource.FILE: str(settings.config),
            SettingSource.DEFAULT: "",
        }[source]
        value = shown_value(name, getattr(values, name), plugins, field)
        rows.append(ShownSetting(name, value, source, given_by, masked(field.get_default())))
    return rows


def _fields(settings: ServerSettings) -> Iterator[tuple[BaseModel, str, FieldInfo]]:
    """Each setting with the model that has its value."""
    for values in (settings, *(each.values for each in settings.added)):
        yield from ((values, name, field) for name, field in type(values).model_fields.items())


def shown_value(name: str, value: Any, plugins: LoadedPlugins, field: FieldInfo | None = None) -> Any:
    """The value of one setting, for JSON.  `field`: that of a plugin's setting."""
    if name == "offer_settings":
        return {key: masked(values, _model_called(key, plugins)) for key, values in value.items()}
    if name == "l2_adapter":
        return [shown_adapter(each, plugins) for each in value]
    if name in _KINDS and isinstance(value, Mapping):
        return masked(value, _model(_KINDS[name], value.get("type"), plugins))
    field = field or ServerSettings.model_fields[name]
    return MASK if is_secret(field) and value is not None else masked(value, field.annotation)


def shown_adapter(given: Mapping[str, Any], plugins: LoadedPlugins) -> Any:
    """What `--l2-adapter` says of one adapter."""
    shown = masked(given, _model(OfferKind.L2_ADAPTER, given.get("type"), plugins))
    if policy := _policy_of(given):
        model = _model(OfferKind.EVICTION_POLICY, policy.get("type"), plugins)
        shown["eviction"]["eviction_policy"] = masked(policy, model)
    if "serde" in given:
        shown["serde"] = _shown_serdes(given["serde"], plugins)
    return shown


def _shown_serdes(given: Any, plugins: LoadedPlugins) -> Any:
    if isinstance(given, list | tuple):
        return [_shown_serdes(each, plugins) for each in given]
    return masked(given, _model(OfferKind.SERDE, given.get("type"), plugins) if isinstance(given, Mapping) else None)


def _policy_of(adapter: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The object that says how an adapter evicts; None where there is none."""
    eviction = adapter.get("eviction")
    policy = eviction.get("eviction_policy") if isinstance(eviction, Mapping) else None
    return policy if isinstance(policy, Mapping) else None


def all_secrets(settings: ServerSettings, plugins: LoadedPlugins, environment: Mapping[str, str]) -> set[str]:
    """Everything that `shown_settings` hides."""
    found: set[str] = set()
    for model, name, field in _fields(settings):
        value = getattr(model, name)
        if name == "offer_settings":
            for key, values in value.items():
                found |= secrets_in(values, _model_called(key, plugins))
        elif name in _KINDS:
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, Mapping):
                    found |= secrets_in(each, _model(_KINDS[name], each.get("type"), plugins))
                    if policy := _policy_of(each):
                        found |= secrets_in(policy, _model(OfferKind.EVICTION_POLICY, policy.get("type"), plugins))
                    for serde in serdes_given(each):
                        found |= secrets_in(serde, _model(OfferKind.SERDE, serde.get("type"), plugins))
        else:
            found |= secrets_in({name: value}, type(model)) if is_secret(field) else secrets_in(value, field.annotation)
    return found - {""}


def _model_called(key: str, plugins: LoadedPlugins) -> Any:
    """By the kind:name of `--offer-settings`."""
    kind, _, name = key.partition(":")
    return _model(kind, name, plugins)


def _model(kind: str, name: Any, plugins: LoadedPlugins) -> Any:
    """The settings model of an offer; None where it is not available, and the names of the keys must do."""
    try:
        return plugins.model(kind, str(name))
    except (LMCacheError, ValueError):
        return None
