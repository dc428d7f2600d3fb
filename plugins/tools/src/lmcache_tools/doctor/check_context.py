"""What is examined: a configuration, on a machine, for a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from lmcache_client.errors import LMCacheError
from lmcache_core.app.adapter_specs import AdapterSpec
from lmcache_core.app.offer_specs import OfferSpec, offer_specs
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.settings import ServerSettings
from lmcache_tools.doctor.model_shape import ModelShape
from lmcache_tools.doctor.probe_result import ProbeResult
from lmcache_tools.machine import Machine
from lmcache_tools.stored_size import ChunkSize

GIB = 2**30


@dataclass(frozen=True, slots=True)
class CheckContext:
    settings: ServerSettings
    plugins: LoadedPlugins
    adapters: tuple[AdapterSpec, ...] = ()
    unusable: tuple[ProbeResult, ...] = ()
    """One for each adapter that is configured and not available, such as one that is not installed."""
    machine: Machine = field(default_factory=Machine)
    model: ModelShape | None = None
    shards: int = 1
    """Workers of the engine that each keep a part of a chunk (tensor parallelism)."""
    page_tokens: int | None = None
    """Of a page of SGLang, where it is known."""

    @property
    def l1_bytes(self) -> int:
        return int(self.settings.l1_size_gb * GIB)

    @property
    def l1_memory(self) -> OfferSpec | None:
        """The memory of a plugin that L1 lies in; None: core's, or settings that the server would refuse."""
        try:
            return offer_specs(self.settings, self.plugins).l1_memory
        except LMCacheError:
            return None

    @property
    def chunk(self) -> ChunkSize | None:
        """None as long as no model is known."""
        if self.model is None:
            return None
        return self.model.chunk(self.settings.chunk_size, self.shards, self.settings.l1_align_bytes)


Probe = Callable[[CheckContext], Iterator[ProbeResult]]
