"""What all parts of a server are given when they are made."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from lmcache_core.app.offer_specs import OfferSpecs
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.settings import ServerSettings
from lmcache_core.contracts.clock import Clock
from lmcache_core.events.bus import EventBus
from lmcache_core.kernels.choice import Kernels


@dataclass(frozen=True, slots=True)
class CommonParts:
    """What all parts are given."""

    settings: ServerSettings
    plugins: LoadedPlugins
    offers: OfferSpecs
    kernels: Kernels
    clock: Clock
    bus: EventBus
    undo: ExitStack
