"""What a name on the command line means: a plugin, an offer (`fs`), or an offer with its kind (`l2_adapter:fs`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lmcache_client.errors import ConfigError
from lmcache_core.app.plugins.catalogue import catalogue
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.plugins.plugin_hooks import Offered
from lmcache_core.app.plugins.plugin_row import PluginRow
from lmcache_core.model.errors import PluginLoadError
from lmcache_core.model.spelling import mistyped

PLUGIN = "plugin"
"""The word before the colon where a plugin as a whole is meant."""


class Found(NamedTuple):
    """One offer and the plugin that has it, or a plugin alone."""

    row: PluginRow
    offered: Offered | None

    @property
    def name(self) -> str:
        """With its kind, so that it is unique."""
        if self.offered is None:
            return f"{PLUGIN}:{self.row.candidate.name}"
        return f"{self.offered.kind}:{self.offered.offer.name}"


def find(plugins: LoadedPlugins, text: str) -> Found:
    """The plugin or the offer of this name.  Raises ConfigError where there is none or more than one, with what there
    is, and PluginError where two plugins have the name."""
    word, colon, name = text.partition(":")
    if not colon:
        called = [*_plugins_called(plugins, text), *_offers_called(plugins, text)]
        return _only(plugins, text, called or _unusable_for(plugins, text))
    if word == PLUGIN:
        return _only(plugins, name, _plugins_called(plugins, name))
    if word not in list(OfferKind):
        raise ConfigError(f"'{word}' is no kind; known: {PLUGIN}, {', '.join(OfferKind)}")
    offer = plugins.offer(word, name)
    offers = [each for each in _offers_called(plugins, name) if each.offered and each.offered.offer is offer]
    return offers[0]


def find_offer(plugins: LoadedPlugins, text: str) -> Found:
    """As `find`, but a plugin stands for the one thing that it offers.  Raises PluginLoadError for a plugin that cannot be
    used."""
    found = find(plugins, text)
    if found.offered is not None:
        return found
    if found.row.error is not None:
        raise PluginLoadError(found.row.candidate.name, str(found.row))
    offers = [Found(found.row, offered) for offered in found.row.offers]
    if len(offers) != 1:
        raise ConfigError(f"plugin '{text}' offers {_listed(offers) or 'nothing'}; name one of them")
    return find(plugins, offers[0].name)


def _plugins_called(plugins: LoadedPlugins, name: str) -> list[Found]:
    return [Found(row, None) for row in plugins.rows() if row.candidate.name == name]


def _offers_called(plugins: LoadedPlugins, name: str) -> list[Found]:
    return [Found(row, offered) for row in plugins.rows() for offered in row.offers if offered.offer.name == name]


def _unusable_for(plugins: LoadedPlugins, name: str) -> list[Found]:
    """The plugins that are called after an offer of this name, and cannot say what they offer."""
    names = [f"{kind.prefix}_{name}" for kind in OfferKind]
    return [Found(row, None) for row in plugins.rows() if row.unusable and row.candidate.name in names]


def _only(plugins: LoadedPlugins, text: str, found: Sequence[Found]) -> Found:
    """A plugin and its own only offer of the same name are one thing."""
    if not found:
        raise ConfigError(_nothing(plugins, text))
    owner = found[0]
    if owner.offered is None and not owner.row.unusable:
        others = [each for each in found[1:] if each.row is not owner.row and each.offered is not None]
        others += [each for each in found[1:] if each.row is owner.row and len(owner.row.offers) > 1]
    else:
        others = [] if owner.offered is None else [each for each in found[1:] if each.name != owner.name]
    if others:
        raise ConfigError(f"'{text}' is {_listed([owner, *others])}; name one of them")
    if owner.offered is not None:
        plugins.offer(owner.offered.kind, text)  # raises where two plugins offer it
    return owner


def _listed(found: Sequence[Found]) -> str:
    return " and ".join(each.name for each in found)


def _nothing(plugins: LoadedPlugins, text: str) -> str:
    known = catalogue()
    offers = {key.partition(":")[2]: distribution for key, distribution in known.offers.items()}
    if distribution := offers.get(text) or known.plugins.get(text):
        return f"'{text}' is not installed: pip install {distribution}"
    rows = plugins.rows()
    installed = dict.fromkeys(row.candidate.name for row in rows)
    installed |= dict.fromkeys(offered.offer.name for row in rows for offered in row.offers)
    guess = mistyped(text, installed)
    remedy = f"did you mean '{guess}'?" if guess else f"installed: {', '.join(installed)}"
    return f"no plugin, and nothing that one offers, is called '{text}'; {remedy}"
