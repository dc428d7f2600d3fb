"""What the module needs beside requests: a look at the settings of the whole server, and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

from lmcache_core import ConfigError, Sample, SampleKind, Service, ServiceContext

if TYPE_CHECKING:
    from lmcache_blend_legacy.module import BlendLegacyModule

_COUNTERS: Final[Mapping[str, SampleKind]] = {
    name: SampleKind(f"lmcache_blend_legacy.{metric}", unit, description, True)
    for name, metric, unit, description in (
        ("lookups", "lookup_requests", "1", "Lookups of documents."),
        ("lookup_tokens", "lookup_requested_tokens", "{token}", "Tokens of the documents of these lookups."),
        ("found_tokens", "lookup_hit_tokens", "{token}", "Tokens of these that were there."),
        ("retrieves", "retrieve_requests", "1", "Reads into buffers of engines."),
        ("asked_chunks", "retrieve_chunks", "{chunk}", "Chunks that these asked for."),
        ("retrieved_chunks", "scatter_chunks", "{chunk}", "Chunks of these that came into the buffers."),
        ("stored_chunks", "stored_chunks", "{chunk}", "Chunks of documents and of final prompts that were stored."),
        ("refused_requests", "refused_requests", "1", "Requests that were refused; the module's status says why."),
    )
}


class BlendLegacyService(Service):
    """On a server without the module it has no values."""

    sample_kinds: Sequence[SampleKind] = tuple(_COUNTERS.values())

    def __init__(self, settings: None, context: ServiceContext) -> None:
        """Raises ConfigError where `--engine-type blend_legacy` cannot work."""
        mode, types = context.value_at("supported_transfer_mode"), context.value_at("engine_type") or ()
        if "blend_legacy" in types and mode == "engine_driven":
            raise ConfigError(
                "--engine-type blend_legacy has the server copy rows of engines, which --supported-transfer-mode "
                "engine_driven switches off; use auto or lmcache_driven, or --engine-type blend"
            )
        # Not by isinstance: most servers do without the module, and what it imports.
        self._module = cast("BlendLegacyModule | None", context.modules.get("blend_legacy"))

    def close(self) -> None:
        """There is nothing to close."""

    def samples(self) -> Sequence[Sample]:
        if self._module is None:
            return ()
        counts = self._module.counts()
        return [kind.of(counts.get(name, 0)) for name, kind in _COUNTERS.items()]
