"""Opens a chain of serdes around an adapter."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from dataclasses import replace
from typing import Annotated, Final

from pydantic import Field

from lmcache_core import (
    Capability,
    ConfigError,
    MemoryRegion,
    PluginSettings,
    ResourceError,
    SerdeChainContext,
)
from lmcache_serde.chain.adapter import ChainedAdapter
from lmcache_serde.chain.links import SerdeChain
from lmcache_serde.chain.scratch import scratch_region

logger = logging.getLogger(__name__)

GIB: Final = 2**30


class ChainSettings(PluginSettings):
    """What the serdes of one adapter may use of the machine: keys beside `serde`."""

    serde_workers: Annotated[
        int, Field(ge=1, le=256, description="Threads that encode and decode; by default one per processor, 4 at most.")
    ] = min(4, os.cpu_count() or 1)
    serde_memory_gb: Annotated[
        float,
        Field(
            gt=0,
            allow_inf_nan=False,
            description="Memory for objects between their serdes and the adapter, in GiB: half of it for stores, half for "
            "loads. It is taken as it is needed.",
        ),
    ] = 0.5


def open_chain(settings: ChainSettings, context: SerdeChainContext) -> ChainedAdapter:
    """The caller closes it.  Raises LMCacheError, with nothing left open."""
    chain = _chain(context)
    region = _region(settings, context.where)
    with ExitStack() as undo:
        inner = context.open_inner(replace(context.adapter, regions=(*context.adapter.regions, region)))
        undo.callback(lambda: opened.close(0.0))  # the adapter inside, and then what is around it
        opened = inner
        _check(context.adapter.name, inner.capabilities)
        opened = adapter = ChainedAdapter(
            context.adapter, inner, chain, region, context.layouts, settings.serde_workers
        )
        for layout in context.layouts.all():
            if fault := adapter.fault_of(layout):
                raise ConfigError(f"{context.where}: {fault}")
        undo.pop_all()
    return adapter


def _chain(context: SerdeChainContext) -> SerdeChain:
    for before, link in zip([None, *context.serdes], context.serdes, strict=False):
        if before and link.serde.needs_elements:
            raise ConfigError(
                f"{context.where}: serde '{link.name}' takes the numbers of a chunk, and is named after '{before.name}', "
                "which makes bytes of them; name it first"
            )
        if before and before.serde.conceals and not link.serde.conceals:
            logger.warning(
                "a serde is named after one that encrypts, and finds nothing to make smaller serde=%s after=%s",
                link.name, before.name,
            )  # fmt: skip
    try:
        return SerdeChain(context.serdes)
    except ValueError as error:
        raise ConfigError(f"{context.where}: {error}") from None


def _region(settings: ChainSettings, where: str) -> MemoryRegion:
    size = max(int(settings.serde_memory_gb * GIB), 1)
    try:
        return scratch_region(size)
    except (OSError, ValueError, OverflowError) as error:
        raise ResourceError(
            f"{where}: {size} bytes of memory could not be allocated ({error}); lower serde_memory_gb"
        ) from None


def _check(name: str, capabilities: Capability) -> None:
    if Capability.ANY_LENGTH in capabilities:
        return
    if Capability.VERIFIES in capabilities:
        raise ConfigError(
            f"adapter '{name}' checks by itself what it loads (VERIFIES) and does not declare ANY_LENGTH: it expects "
            "objects as they are in L1, and would refuse everything that went through a serde; leave out its 'serde', or "
            "use an adapter with both or neither"
        )
    logger.warning(
        "l2 adapter stores objects of one length only, so each is padded to the most that its serdes may make of it: "
        "compression saves nothing there adapter=%s",
        name,
    )
