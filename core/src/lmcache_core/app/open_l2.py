"""Opens the storage backends, and what runs beside each."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from lmcache_core.app.adapter_specs import AdapterSpec
from lmcache_core.app.l2_tier import ADAPTER_CLOSE_SECONDS, RunningAdapter
from lmcache_core.app.masking import Hidden, secrets_in
from lmcache_core.app.open_adapter import open_spec
from lmcache_core.app.open_l2_eviction import open_l2_eviction
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.serdes import KnownLayouts
from lmcache_core.contracts.context import AdapterContext
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.kernels.choice import Kernels


@dataclass(frozen=True, slots=True)
class AdapterOpener:
    """Opens adapters of this server, each with a context of its own made from `context`.  Any thread."""

    plugins: LoadedPlugins
    context: AdapterContext
    kernels: Kernels
    hidden: Hidden
    """Told the secrets of each adapter before anything can say them."""
    layouts: KnownLayouts

    def open(self, spec: AdapterSpec, index: int, timeout_seconds: float) -> RunningAdapter:
        """The caller closes it.  Raises LMCacheError, with nothing left open."""
        policy = spec.eviction.policy.settings if spec.eviction else None
        self.hidden.learn(secrets_in(spec.settings) | secrets_in(spec.given) | secrets_in(policy))
        if spec.eviction:
            self.hidden.learn(secrets_in(spec.eviction.policy.settings))
        for serde in spec.serdes.serdes if spec.serdes else ():
            self.hidden.learn(secrets_in(serde.settings))
        own = replace(self.context, name=spec.name, logger=logging.getLogger(f"lmcache.l2.{spec.name}"))
        adapter = open_spec(spec, self.plugins, own, self.layouts)
        client = AdapterClient(index, spec.name, adapter, adapter.capabilities, own.clock, timeout_seconds)
        if spec.eviction is None:
            return RunningAdapter(spec, client)
        with ExitStack() as undo:
            undo.callback(client.close, ADAPTER_CLOSE_SECONDS)
            eviction = open_l2_eviction(spec.eviction, client, self.plugins, own.clock, own.events, self.kernels)
            undo.pop_all()
        return RunningAdapter(spec, client, eviction)


def open_l2(
    specs: Sequence[AdapterSpec], opener: AdapterOpener, timeout_seconds: float, undo: ExitStack
) -> list[RunningAdapter]:
    """The adapters in their order.  Those that were opened are closed by `undo`."""
    adapters: list[RunningAdapter] = []
    for index, spec in enumerate(specs):
        adapters.append(opener.open(spec, index, timeout_seconds))
        undo.callback(adapters[-1].client.close, ADAPTER_CLOSE_SECONDS)
    return adapters
