"""From an offer's import strings to what they name, or to one line about why there is no such thing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lmcache_client.errors import LMCacheError
from lmcache_core.app.plugins.discovery import Candidate
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.plugins.plugin_fault import install_again, place_of
from lmcache_core.app.plugins.plugin_modules import describe
from lmcache_core.contracts.offer import Offer
from lmcache_core.model.errors import PluginLoadError


def resolve(candidate: Candidate, kind: OfferKind, offer: Offer, target: str) -> Any:
    """What `target`, an import string of the offer, names.  Raises PluginLoadError; the server's own errors pass."""
    module, _, name = target.partition(":")
    try:
        return getattr(import_module(module), name)
    except LMCacheError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginLoadError(candidate.name, cannot_open(candidate, kind, offer, error)) from error


def cannot_open(candidate: Candidate, kind: OfferKind, offer: Offer, error: BaseException) -> str:
    """One line that names the offer, its owner, the error, and where in the plugin's code that happened."""
    subject = f"{kind.label} '{offer.name}' ({candidate.owner}) cannot be opened"
    place = place_of(error, candidate)
    where = f" ({place})" if place else ""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return f"{subject}: {describe(error)}{where}"
    if error.name.partition(".")[0] == candidate.module.partition(".")[0]:
        owner = candidate.distribution or f"plugin '{candidate.name}'"
        return f"{subject}: {_asks_for(offer, error.name)} module {error.name}, which {owner} does not have{where}"
    remedy = f"; something it needs is not installed: {install_again(candidate)}" if candidate.distribution else ""
    return f"{subject}: {describe(error)}{where}{remedy}"


def _asks_for(offer: Offer, module: str) -> str:
    """Who asks for a module that is not there: one of the offer's import strings, or the code behind them."""
    for part, target in (("open", offer.open), ("settings", offer.settings or "")):
        if f"{target.partition(':')[0]}.".startswith(f"{module}."):
            return f"{part} names"
    return "its code imports"
