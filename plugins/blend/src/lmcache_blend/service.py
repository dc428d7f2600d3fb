"""What blending needs beside requests: metrics, and the fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

from lmcache_core import ConfigError, Sample, SampleKind, ServerInfo, Service, ServiceContext

if TYPE_CHECKING:
    from lmcache_blend.module import BlendModule

_COUNTERS: Final[Mapping[str, SampleKind]] = {
    name: SampleKind(f"lmcache_blend.{metric}", unit, description, True)
    for name, metric, unit, description in (
        ("lookups", "lookup_requests", "1", "Lookups of engines that blend."),
        ("lookup_tokens", "lookup_requested_tokens", "{token}", "Tokens of the prompts of these lookups."),
        ("hit_tokens", "lookup_hit_tokens", "{token}", "Tokens of these that were found."),
        ("prefix_tokens", "lookup_prefix_hit_tokens", "{token}", "Tokens found as a prefix."),
        ("segment_tokens", "lookup_non_prefix_hit_tokens", "{token}", "Tokens found behind the prefix."),
        (
            "matched",
            "lookup_fingerprint_hits",
            "{chunk}",
            "Chunks that lookups asked for because the index knew their tokens.",
        ),
        ("there", "lookup_storage_hits", "{chunk}", "Chunks of these that were there."),
        ("gone", "lookup_stale_chunks", "{chunk}", "Chunks of these that no tier had, or none said in time."),
        ("late", "lookup_late_answers", "1", "Lookups whose answer came after the time that the engine waits."),
        ("unmatched", "lookup_unmatched", "1", "Lookups that went on without the index, because it was in use."),
        (
            "fleet_there",
            "coordinator_matches",
            "{chunk}",
            "Chunks of these that only the coordinator named, and that another server or a slower tier gave.",
        ),
        ("fleet_late", "coordinator_match_timeouts", "1", "Lookups that went on without the coordinator's answer."),
        (
            "fleet_skipped",
            "coordinator_skipped",
            "1",
            "Lookups that did not wait for the coordinator, because it failed.",
        ),
        ("fleet_failed", "coordinator_failures", "1", "Questions to the coordinator that failed or took too long."),
        (
            "fleet_wrong",
            "coordinator_wrong",
            "{chunk}",
            "Matches of the coordinator that were not those of the tokens.",
        ),
        ("prepares", "retrieve_requests", "1", "Reads of segments by workers."),
        ("segments", "retrieve_chunks", "{chunk}", "Segments that these asked for."),
        (
            "segments_gone",
            "retrieve_failures",
            "{chunk}",
            "Segments of these that were not there any more, or whose server-driven read had one that was not.",
        ),
        (
            "moved_tokens",
            "scatter_tokens",
            "{token}",
            "Tokens of segments that the server wrote into pages of engines.",
        ),
        ("refused", "refused_requests", "1", "Requests that were refused; the module's status says why."),
        ("chunks_added", "fingerprints_registered", "{chunk}", "Chunks that the index has taken in."),
        ("chunks_forgotten", "chunks_evicted", "{chunk}", "Chunks that the index has forgotten for others."),
        ("chunks_dropped", "chunks_dropped", "{chunk}", "Chunks that were not indexed because too many came at once."),
        (
            "chunks_without_tokens",
            "chunks_without_tokens",
            "{chunk}",
            "Chunks that were not indexed because their tokens were not known when they were stored.",
        ),
    )
}
_CHUNKS: Final = SampleKind("lmcache_blend.index_chunks", "{chunk}", "Chunks that are found by their tokens.", False)


class BlendService(Service):
    """On a server without the module it has no values."""

    sample_kinds: Sequence[SampleKind] = (*_COUNTERS.values(), _CHUNKS)

    def __init__(self, settings: None, context: ServiceContext) -> None:
        """Raises ConfigError where `--engine-type blend` cannot work."""
        mode, types = context.value_at("supported_transfer_mode"), context.value_at("engine_type") or ()
        if "blend" in types and mode == "engine_driven" and context.value_at("l1_shared_memory") is False:
            raise ConfigError(
                "--engine-type blend serves engines that map L1, and engines whose pages the server fills: with "
                "--supported-transfer-mode engine_driven and --no-l1-shared-memory there are neither; leave one of the two out"
            )
        self._context = context
        self._leave: Callable[[], None] = lambda: None
        # Not by isinstance: most servers do without the module, and what it imports.
        self._module = cast("BlendModule | None", context.modules.get("blend"))

    def start(self, server: ServerInfo) -> None:
        if self._module is not None and self._context.value_at("coordinator_url"):
            self._join(self._module, server.boot_id)

    def _join(self, module: BlendModule, boot_id: str) -> None:
        """The fleet: others find what is here, and what they have is found here."""
        from lmcache_blend.fleet import ANSWER_SECONDS, ASKING_MAX, FleetMatches
        from lmcache_fleet.http_connection import secured
        from lmcache_fleet.tokens import JOURNALS, TokensJournal

        at = self._context.value_at
        files = {name: at(f"coordinator_{name}") for name in ("token_file", "ca", "cert", "key")}
        fleet = FleetMatches(
            [
                [secured(url, **files, seconds=ANSWER_SECONDS) for url in at("coordinator_url")]
                for _ in range(ASKING_MAX)
            ]
        )
        module.feed.journal = JOURNALS[boot_id] = TokensJournal()
        module.fleet = fleet

        def leave() -> None:
            del JOURNALS[boot_id]
            fleet.close()

        self._leave = leave

    def close(self) -> None:
        """Also before `start`."""
        self._leave()

    def samples(self) -> Sequence[Sample]:
        if self._module is None:
            return ()
        counts = self._module.counts()
        values = [kind.of(counts.get(name, 0)) for name, kind in _COUNTERS.items()]
        return [*values, _CHUNKS.of(counts["chunks"])]
