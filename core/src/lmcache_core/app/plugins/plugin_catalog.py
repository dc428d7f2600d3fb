"""What a plugin's own command may open: the `PluginCatalog` of its context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lmcache_client.errors import ConfigError
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.contracts.offer import Offer

_OPENED_ALONE: Final = (
    OfferKind.EVICTION_POLICY,
    OfferKind.STORE_POLICY,
    OfferKind.PREFETCH_POLICY,
    OfferKind.SUBSCRIBER,
)


class LoadedCatalog:
    """The loaded plugins by the words that a command's author knows.  One thread, that of the command."""

    def __init__(self, plugins: LoadedPlugins) -> None:
        self._plugins = plugins

    def offers(self, kind: str) -> Sequence[Offer]:
        return self._plugins.offers(_kind(kind))

    def open(self, kind: str, name: str, settings: Mapping[str, Any]) -> Any:
        wanted = _kind(kind)
        if wanted not in _OPENED_ALONE:
            raise ConfigError(
                f"{wanted.label} '{name}' needs a running server; a command can open a policy or a subscriber"
            )
        # here, because listing commands must not pay for pydantic
        from lmcache_core.app.offer_specs import offer_spec

        return offer_spec(self._plugins, wanted, name, settings, f"{wanted.label} '{name}'").open(self._plugins)


def _kind(word: str) -> OfferKind:
    if word not in list(OfferKind):
        raise ConfigError(f"no kind of offer is called '{word}'; known: {', '.join(OfferKind)}")
    return OfferKind(word)
