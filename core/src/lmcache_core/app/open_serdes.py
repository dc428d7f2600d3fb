"""Opens what `--l2-adapter` asks for: the adapter, behind its serdes where it has any."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from lmcache_client.errors import ConfigError, ResourceError
from lmcache_core.app.adapter_specs import AdapterSpec
from lmcache_core.app.open_adapter import open_adapter
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.serde_specs import SerdeSpecs
from lmcache_core.contracts.buffers import MemoryRegion
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.context import AdapterContext
from lmcache_core.contracts.l2_adapter import L2Adapter
from lmcache_core.contracts.serde import Serde
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
    with ExitStack() as undo:
        adapter = open_adapter(spec.offer.name, spec.settings, plugins, own)
        undo.callback(lambda: adapter.close(0.0))  # whichever it is by then
        _check(spec, adapter.capabilities)
        adapter = SerdeAdapter(context, adapter, chain, region, layouts, spec.serdes.settings.serde_workers)
        for layout in layouts.all():
            if fault := adapter.fault_of(layout):
                raise ConfigError(f"{spec.serdes.where}: {fault}")
        undo.pop_all()
    return adapter


def _open_chain(specs: SerdeSpecs, plugins: LoadedPlugins) -> SerdeChain:
    links: list[Link] = []
    for number, spec in enumerate(specs.serdes):
        serde: Serde = spec.open_as(Serde, plugins)
        if number and serde.needs_elements:
            raise ConfigError(
                f"{specs.where}: serde '{spec.name}' takes the numbers of a chunk, and stands behind "
                f"'{specs.serdes[number - 1].name}', which makes bytes of them; name it first"
            )
        if links and links[-1].serde.conceals and not serde.conceals:
            logger.warning(
                "a serde stands behind one that encrypts, and finds nothing to make smaller serde=%s behind=%s",
                spec.name, links[-1].name,
            )  # fmt: skip
        links.append(Link(spec.name, serde))
    try:
        return SerdeChain(links)
    except ValueError as error:
        raise ConfigError(f"{specs.where}: {error}") from None


def _region(specs: SerdeSpecs) -> MemoryRegion:
    size = max(int(specs.settings.serde_memory_gb * GIB), 1)
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
            f"adapter '{spec.name}' checks by itself what it loads (VERIFIES) and does not declare ANY_LENGTH: it expects "
            "objects as they are in L1, and would refuse everything that went through a serde; leave out its 'serde', or "
            "use an adapter with both or neither"
        )
    logger.warning(
        "l2 adapter stores objects of one length only, so each is padded to the most that its serdes may make of it: "
        "compression saves nothing there adapter=%s",
        spec.name,
    )
