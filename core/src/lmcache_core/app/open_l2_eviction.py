"""Opens the eviction of one adapter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lmcache_core.app.l2_eviction_spec import L2EvictionSpec, check_capabilities
from lmcache_core.app.open_eviction_policy import open_eviction_policy
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.events import Publisher
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.l2_contents import L2Listing
from lmcache_core.controllers.l2_eviction import L2EvictionController
from lmcache_core.kernels.choice import Kernels


@dataclass(frozen=True, slots=True, eq=False)
class L2Eviction:
    """The controller of one adapter, and the listing that it begins with, if the adapter has one."""

    adapter: str
    policy: str
    controller: L2EvictionController
    listing: L2Listing | None

    def threads(self) -> list[tuple[str, Callable[[], None]]]:
        """Names and bodies."""
        threads = [(f"l2-eviction-{self.adapter}", self.controller.run)]
        return [*threads, (f"l2-listing-{self.adapter}", self.listing.run)] if self.listing else threads

    def stop(self) -> None:
        self.controller.stop()
        if self.listing:
            self.listing.stop()

    def close(self) -> None:
        """After both threads have ended, where the server goes on without them."""
        self.controller.close()

    def status(self) -> dict[str, Any]:
        listing = self.listing.state if self.listing else "not offered"
        return {"eviction_policy": self.policy, **self.controller.status(), "listing": listing}


def open_l2_eviction(
    spec: L2EvictionSpec,
    client: AdapterClient,
    plugins: LoadedPlugins,
    clock: Clock,
    events: Publisher,
    kernels: Kernels,
) -> L2Eviction:
    """Raises ConfigError where the adapter cannot delete or does not know what it holds, and what the policy raises."""
    check_capabilities(client.name, client.capabilities)
    policy = open_eviction_policy(spec.policy, plugins, kernels)
    controller = L2EvictionController(
        client,
        policy,
        spec.trigger_watermark,
        spec.eviction_ratio,
        clock,
        events,
        built_in=lambda: LeastRecentlyUsed(kernels),
    )
    client.watch(controller)
    listing = L2Listing(client, controller) if Capability.LIST in client.capabilities else None
    return L2Eviction(client.name, spec.policy.name, controller, listing)
