"""Opens an L2 adapter, and looks at it before a controller does: what is wrong with one is said at the start, by name."""

from __future__ import annotations

import logging

from lmcache_core.app.adapter_specs import AdapterSpec
from lmcache_core.app.commands.plugins_list import capability_words
from lmcache_core.app.offer_specs import OfferSpec
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.plugins.plugin_fault import describe
from lmcache_core.app.serdes import open_behind_serdes
from lmcache_core.contracts.context import AdapterContext
from lmcache_core.contracts.l2_adapter import L2Adapter
from lmcache_core.contracts.serde import SerdeLayouts
from lmcache_core.contracts.settings import PluginSettings
from lmcache_core.model.errors import PluginContractError

logger = logging.getLogger(__name__)


def open_spec(spec: AdapterSpec, plugins: LoadedPlugins, context: AdapterContext, layouts: SerdeLayouts) -> L2Adapter:
    """The adapter that `--l2-adapter` asks for, behind its serdes where it has any.  The caller closes it.  Raises
    LMCacheError, with nothing left open."""

    def inner(context: AdapterContext) -> L2Adapter:
        return open_adapter(spec.offer.name, spec.settings, plugins, context)

    if spec.serdes is None:
        return inner(context)
    return open_behind_serdes(spec.serdes, plugins, context, layouts, inner)


def open_adapter(
    name: str, settings: PluginSettings | None, plugins: LoadedPlugins, context: AdapterContext
) -> L2Adapter:
    """The offer of this name, opened: the caller closes it.  Raises LMCacheError, with nothing left open as far as the
    adapter lets that be done.  Warns where it can do something else than its offer says."""
    adapter: L2Adapter = OfferSpec(OfferKind.L2_ADAPTER, name, settings).open_as(L2Adapter, plugins, context)
    owner = plugins.owner(OfferKind.L2_ADAPTER, name)
    if fault := _fault(adapter):
        try:
            adapter.close(0.0)
        except Exception:  # what is half made cannot always be closed
            logger.debug("l2 adapter failed to close adapter=%s", context.name, exc_info=True)
        raise PluginContractError(owner.name, f"L2 adapter '{name}' ({owner.owner}): {fault}")
    offer = plugins.offer(OfferKind.L2_ADAPTER, name)
    if not offer.allows(adapter.capabilities):
        logger.warning(
            "l2 adapter has other capabilities than its offer says, and its own count adapter=%s offer=[%s] adapter's=[%s]",
            context.name,
            capability_words(offer.capabilities),
            capability_words(adapter.capabilities),
        )
    return adapter


def _fault(adapter: L2Adapter) -> str | None:
    """Why its completions cannot be polled; None where they can."""
    try:
        descriptor = adapter.completions().fileno()
    except Exception as error:  # noqa: BLE001 - a plugin's boundary
        return f"completions().fileno() failed: {describe(error)}"
    if not isinstance(descriptor, int) or descriptor < 0:
        return f"completions().fileno() is {descriptor!r}, which is not a file descriptor"
    return None
