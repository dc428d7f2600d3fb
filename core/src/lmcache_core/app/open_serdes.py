"""Opens what `--l2-adapter` asks for: the adapter, behind its serdes where it has any."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from lmcache_core.app.adapter_specs import AdapterSpec
from lmcache_core.app.open_adapter import open_adapter
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.serde_specs import SerdeSpecs
from lmcache_core.contracts.buffers import MemoryRegion
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.context import AdapterContext
from lmcache_core.contracts.l2_adapter import L2Adapter
from lmcache_core.contracts.serde import Serde
from lmcache_core.model.errors import ConfigError, ResourceError
from lmcache_core.serde.chain import Link, SerdeChain
from lmcache_core.serde.known_layouts import KnownLayouts
from lmcache_core.serde.scratch import scratch_region
from lmcache_core.serde.serde_adapter import SerdeAdapter

logger = logging.getLogger(__name__)

GIB: Final = 2**30


def open_spec(spec: AdapterSpec, plugins: LoadedPlugins, context: AdapterContext, layouts: KnownLayouts) -> L2Adapter:
    """The caller closes it.  Raises LMCacheError, with nothing left open."""
    if spec.serdes is None:
        return open_adapter(spec.offer.name, spec.settings, plugins, context)
    chain = _open_chain(spec.serdes, plugins)
    region = _region(spec.serdes)
    own = replace(context, regions=(*context.regions, region))
    inner = open_adapter(spec.offer.name, spec.settings, plugins, own)
    try:
        _check(spec, inner.capabilities)
        adapter = SerdeAdapter(context, inner, chain, region, layouts, spec.serdes.settings.serde_workers)
    except BaseException:
        inner.close(0.0)
        raise
    for layout in layouts.all():
        if fault := adapter.fault_of(layout):
            adapter.close(0.0)
            raise ConfigError(f"{spec.serdes.where}: {fault}")
    return adapter


def _open_chain(specs: SerdeSpecs, plugins: LoadedPlugins) -> SerdeChain:
    links = []
    for number, spec in enumerate(specs.serdes):
        serde: Serde = spec.open_as(Serde, plugins)
        if number and serde.needs_elements:
            raise ConfigError(
                f"{specs.where}: serde '{spec.name}' takes the numbers of a chunk, and stands behind "
                f"'{specs.serdes[number - 1].name}', which makes bytes of them; name it first"
            )
        links.append(Link(spec.name, serde))
    return SerdeChain(links)


def _region(specs: SerdeSpecs) -> MemoryRegion:
    size = int(specs.settings.serde_memory_gb * GIB)
    try:
        return scratch_region(size)
    except (OSError, ValueError, OverflowError) as error:
        raise ResourceError(
            f"{specs.where}: {size} bytes of memory cannot be had ({error}); lower serde_memory_gb"
        ) from None


def _check(spec: AdapterSpec, capabilities: Capability) -> None:
    if Capability.ANY_LENGTH in capabilities:
        return
    if Capability.VERIFIES in capabilities:
        raise ConfigError(
            f"adapter '{spec.name}' checks what it loads and knows nothing of serdes (it does not declare ANY_LENGTH); "
            "leave out its 'serde'"
        )
    logger.warning(
        "l2 adapter stores objects of one length only, so each is padded to the most that its serdes may make of it: "
        "compression saves nothing there adapter=%s",
        spec.name,
    )
