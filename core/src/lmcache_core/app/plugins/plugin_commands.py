"""`lmcache NAME`, where NAME is a command that a plugin offers.  Flags behind the name are the command's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lmcache_core.app.console.core_commands import CORE_COMMANDS
from lmcache_core.app.plugins.discovery import Candidate
from lmcache_core.app.plugins.known_names import DISTRIBUTIONS_OF_OFFERS
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.plugins.plugin_catalog import LoadedCatalog
from lmcache_core.app.plugins.plugin_fault import place_of
from lmcache_core.app.plugins.plugin_modules import describe
from lmcache_core.app.plugins.plugin_selection import PluginSelection
from lmcache_core.contracts.command import CommandContext
from lmcache_core.model.errors import ConfigError, LMCacheError, PluginContractError
from lmcache_core.model.spelling import nearest

_EXIT_CODE_MAX: Final = 255


def plugin_commands(selection: PluginSelection) -> list[tuple[str, str]]:
    """Names and summaries of the commands that plugins offer."""
    return [(offer.name, offer.summary) for offer in selection.load_for_user().offers(OfferKind.COMMAND)]


def run_plugin_command(name: str, arguments: Sequence[str], selection: PluginSelection) -> int:
    """Run it and return its exit code.  The server's own errors pass through; any other is an LMCacheError of one line
    that says where.  Raises ConfigError, with what was probably meant or what to install, for a name that no plugin
    offers."""
    plugins = selection.load_for_user()
    try:
        offer = plugins.offer(OfferKind.COMMAND, name)
    except ConfigError as error:
        known = [*CORE_COMMANDS, *(offer.name for offer in plugins.offers(OfferKind.COMMAND))]
        if name in DISTRIBUTIONS_OF_OFFERS[OfferKind.COMMAND]:
            raise
        guess = nearest(name, known)
        remedy = f"did you mean '{guess}'?" if guess else f"known: {', '.join(known)}"
        unusable = plugins.unusable()
        more = f"{'' if remedy.endswith('?') else '.'} {unusable}" if unusable else ""
        raise ConfigError(f"no command is called '{name}'; {remedy}{more}") from error
    owner = plugins.owner(OfferKind.COMMAND, name)
    run = plugins.opener(OfferKind.COMMAND, name)
    try:
        code = run(tuple(arguments), CommandContext(LoadedCatalog(plugins)))
    except (LMCacheError, BrokenPipeError):  # said well already, and no fault of anybody
        raise
    except Exception as error:
        raise LMCacheError(_failed(name, owner, error)) from error
    if not isinstance(code, int) or isinstance(code, bool):
        raise PluginContractError(
            owner.name, f"command '{name}' ('{offer.open}') returned {type(code).__name__} where an exit code belongs"
        )
    if not 0 <= code <= _EXIT_CODE_MAX:  # the system would keep its last eight bits: 256 would be a success
        raise PluginContractError(
            owner.name, f"command '{name}' ('{offer.open}') returned {code}; an exit code is 0 to {_EXIT_CODE_MAX}"
        )
    return code


def _failed(name: str, owner: Candidate, error: Exception) -> str:
    place = place_of(error, owner)
    where = f" ({place})" if place else ""
    return f"command '{name}' of plugin '{owner.name}' ({owner.owner}) failed: {describe(error)}{where}"
