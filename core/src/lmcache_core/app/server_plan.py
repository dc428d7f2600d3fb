"""What a server is to be made of, checked before the first thing is opened."""

from __future__ import annotations

import msgspec

from lmcache_core.app.adapter_specs import AdapterSpec, adapter_specs
from lmcache_core.app.offer_specs import OfferSpecs, offer_specs
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.settings import ServerSettings
from lmcache_core.kernels.choice import Kernels, choose_kernels


class ServerPlan(msgspec.Struct, frozen=True):
    kernels: Kernels
    adapters: tuple[AdapterSpec, ...]
    offers: OfferSpecs


def server_plan(settings: ServerSettings, plugins: LoadedPlugins) -> ServerPlan:
    """Opens nothing.  Raises ConfigError."""
    # safe mode imports nothing but core, unless asked to
    kernels = choose_kernels("off" if settings.safe_mode and settings.native == "auto" else settings.native)
    return ServerPlan(
        kernels,
        adapter_specs(settings.l2_adapter, plugins),
        offer_specs(settings, plugins),
    )
