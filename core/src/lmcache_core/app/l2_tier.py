"""The L2 adapters of a running server: which there are, and the stage of each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from lmcache_core.app.adapter_specs import AdapterSpec
from lmcache_core.contracts.l2_eviction import L2Eviction
from lmcache_core.contracts.policies import EvictionPolicy
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.adapter_removal import AdapterRemoval, AdapterStage
from lmcache_core.controllers.policy_guard import GuardedPolicy

ADAPTER_CLOSE_SECONDS: Final = 5.0


class RunningEviction(msgspec.Struct, frozen=True, eq=False):
    """The eviction of one adapter."""

    adapter: str
    policy: str
    guarded: GuardedPolicy[EvictionPolicy]
    eviction: L2Eviction

    def threads(self) -> list[tuple[str, Callable[[], None]]]:
        """Names and bodies."""
        return [(f"l2-{name}-{self.adapter}", run) for name, run in self.eviction.threads().items()]

    def status(self) -> dict[str, Any]:
        return {"eviction_policy": self.policy, **self.eviction.status()}


@dataclass(slots=True, eq=False)
class RunningAdapter:
    """One adapter with what runs beside it.  `is_draining` and `removal` are changed under the lock of its tier."""

    spec: AdapterSpec
    client: AdapterClient
    eviction: RunningEviction | None = None
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
    def evictions(self) -> tuple[RunningEviction, ...]:
        return tuple([adapter.eviction for adapter in self.adapters if adapter.eviction is not None])
