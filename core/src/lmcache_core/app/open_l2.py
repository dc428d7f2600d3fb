"""Opens the storage backends, and what runs beside each."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from lmcache_core.app.adapter_specs import AdapterSpec
from lmcache_core.app.loaded_plugins import LoadedPlugins
from lmcache_core.app.open_adapter import open_adapter
from lmcache_core.app.open_l2_eviction import L2Eviction, open_l2_eviction
from lmcache_core.app.server import ADAPTER_CLOSE_SECONDS
from lmcache_core.contracts.context import AdapterContext
from lmcache_core.controllers.adapter_port import AdapterPort
from lmcache_core.kernels.choice import Kernels


def open_l2(
    specs: Sequence[AdapterSpec],
    plugins: LoadedPlugins,
    context: AdapterContext,
    timeout_seconds: float,
    kernels: Kernels,
    undo: ExitStack,
) -> tuple[list[AdapterPort], list[L2Eviction]]:
    """The adapters in their order, each with a context of its own made from `context`.  Those that were opened are
    closed by `undo`."""
    ports: list[AdapterPort] = []
    evictions: list[L2Eviction] = []
    for index, spec in enumerate(specs):
        own = replace(context, name=spec.name, logger=logging.getLogger(f"lmcache.l2.{spec.name}"))
        adapter = open_adapter(spec.offer.name, spec.settings, plugins, own)
        port = AdapterPort(index, spec.name, adapter, adapter.capabilities, own.clock, timeout_seconds)
        undo.callback(port.close, ADAPTER_CLOSE_SECONDS)
        ports.append(port)
        if spec.eviction:
            evictions.append(open_l2_eviction(spec.eviction, port, plugins, own.clock, own.events, kernels))
    return ports, evictions
