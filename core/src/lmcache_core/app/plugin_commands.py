"""`lmcache NAME`, where NAME is a command that a plugin offers.  Flags behind the name are the command's own."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core.app.core_commands import CORE_COMMANDS
from lmcache_core.app.known_names import DISTRIBUTIONS_OF_OFFERS
from lmcache_core.app.offer_kind import OfferKind
from lmcache_core.app.plugin_catalog import LoadedCatalog
from lmcache_core.app.plugin_selection import PluginSelection
from lmcache_core.contracts.command import CommandContext
from lmcache_core.model.errors import ConfigError, PluginContractError
from lmcache_core.model.spelling import nearest


def plugin_commands(selection: PluginSelection) -> list[tuple[str, str]]:
    """Names and summaries of the commands that plugins offer."""
    return [(offer.name, offer.summary) for offer in selection.load().offers(OfferKind.COMMAND)]


def run_plugin_command(name: str, arguments: Sequence[str], selection: PluginSelection) -> int:
    """Run it and return its exit code; what it raises passes through.  Raises ConfigError, with what was probably meant
    or what to install, for a name that no plugin offers."""
    plugins = selection.load()
    try:
        offer = plugins.offer(OfferKind.COMMAND, name)
    except ConfigError as error:
        known = [*CORE_COMMANDS, *(offer.name for offer in plugins.offers(OfferKind.COMMAND))]
        if name in DISTRIBUTIONS_OF_OFFERS[OfferKind.COMMAND]:
            raise
        guess = nearest(name, known)
        remedy = f"did you mean '{guess}'?" if guess else f"known: {', '.join(known)}"
        raise ConfigError(f"no command is called '{name}'; {remedy}") from error
    run = plugins.opener(OfferKind.COMMAND, name)
    code = run(tuple(arguments), CommandContext(LoadedCatalog(plugins)))
    if not isinstance(code, int):
        raise PluginContractError(
            name, f"command '{name}' ('{offer.open}') returned {type(code).__name__} where an exit code belongs"
        )
    return code
