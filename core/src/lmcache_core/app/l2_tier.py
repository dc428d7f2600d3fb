"""The L2 adapters of a running server: which there are, and the stage of each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from lmcache_core.app.adapter_specs import AdapterSpec
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.adapter_removal import AdapterRemoval, AdapterStage
from lmcache_core.controllers.l2_contents import L2Listing
from lmcache_core.controllers.l2_eviction import L2EvictionController

ADAPTER_CLOSE_SECONDS: Final = 5.0


class L2Eviction(msgspec.Struct, frozen=True, eq=False):
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


@dataclass(slots=True, eq=False)
class RunningAdapter:
    """One adapter with what runs beside it.  `is_draining` and `removal` are changed under the lock of its tier."""

    spec: AdapterSpec
    client: AdapterClient
    eviction: L2Eviction | None = None
    is_draining: bool = False
    removal: AdapterRemoval | None = None

    @property
    def name(self) -> str:
        return self.client.name

    @property
    def state(self) -> AdapterStage:
        if self.removal is not None:
            return self.removal.state
        return AdapterStage.DRAINING if self.is_draining else AdapterStage.SERVING

    def close(self, deadline_seconds: float) -> None:
        """Give everything back, of one that was never used."""
        self.client.close(deadline_seconds)
        if self.eviction is not None:
            self.eviction.close()


@dataclass(slots=True, eq=False)
class L2Tier:
    """Safe from any thread."""

    adapters: tuple[RunningAdapter, ...]
    """In the order in which loads ask them; one that is being removed is among them until it is gone.  Replaced as a whole,
    under the lock."""
    timeout_seconds: float
    """For the jobs of adapters that are added later."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held to change anything here; nothing that can block is done under it."""

    @property
    def clients(self) -> tuple[AdapterClient, ...]:
        return tuple([adapter.client for adapter in self.adapters])

    @property
    def evictions(self) -> tuple[L2Eviction, ...]:
        return tuple([adapter.eviction for adapter in self.adapters if adapter.eviction is not None])
