"""Every setting as an operator may see it: its value without secrets, and who gave it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from lmcache_client.errors import LMCacheError
from lmcache_core.app.masking import MASK, masked, secrets_in
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.offer_kind import OfferKind
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
        value = shown_value(name, getattr(values, name), plugins, type(values))
        rows.append(ShownSetting(name, value, source, given_by, masked(field.get_default())))
    return rows


def _fields(settings: ServerSettings) -> Iterator[tuple[BaseModel, str, FieldInfo]]:
    """Each setting with the model that has its value."""
    for values in (settings, *(each.values for each in settings.added)):
        yield from ((values, name, field) for name, field in type(values).model_fields.items())


Look = Callable[[Any, Any], Any]
"""What becomes of a value, of which a settings model or a type says more: `masked`, perhaps with more done on the way."""


def shown_value(
    name: str, value: Any, plugins: LoadedPlugins, model: type[BaseModel] = ServerSettings, look: Look = masked
) -> Any:
    """The value of one setting of this model, for JSON."""
    if name == "offer_settings":
        return {key: look(values, _model_called(key, plugins)) for key, values in value.items()}
    if name == "l2_adapter":
        return [shown_adapter(each, plugins, look) for each in value]
    if name in _KINDS and isinstance(value, Mapping):
        return look(value, _model(_KINDS[name], value.get("type"), plugins))
    field = model.model_fields[name]
    if is_secret(field) and value is not None:
        look({name: value}, model)  # for who gathers secrets
        return MASK
    return look(value, field.annotation)


def shown_adapter(given: Mapping[str, Any], plugins: LoadedPlugins, look: Look = masked) -> Any:
    """What `--l2-adapter` says of one adapter."""
    shown = look(given, _model(OfferKind.L2_ADAPTER, given.get("type"), plugins))
    if policy := _policy_of(given):
        model = _model(OfferKind.EVICTION_POLICY, policy.get("type"), plugins)
        shown["eviction"]["eviction_policy"] = look(policy, model)
    if "serde" in given:
        shown["serde"] = _shown_serdes(given["serde"], plugins, look)
    return shown


def _shown_serdes(given: Any, plugins: LoadedPlugins, look: Look) -> Any:
    if isinstance(given, list | tuple):
        return [_shown_serdes(each, plugins, look) for each in given]
    return look(given, _model(OfferKind.SERDE, given.get("type"), plugins) if isinstance(given, Mapping) else None)


def _policy_of(adapter: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The object that says how an adapter evicts; None where there is none."""
    eviction = adapter.get("eviction")
    policy = eviction.get("eviction_policy") if isinstance(eviction, Mapping) else None
    return policy if isinstance(policy, Mapping) else None


def all_secrets(settings: ServerSettings, plugins: LoadedPlugins) -> set[str]:
    """Everything that `shown_settings` hides."""
    found: set[str] = set()

    def collected(value: Any, kind: Any) -> Any:
        found.update(secrets_in(value, kind))
        return masked(value, kind)

    for values, name, _ in _fields(settings):
        shown_value(name, getattr(values, name), plugins, type(values), collected)
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
