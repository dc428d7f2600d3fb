"""All probes, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from lmcache_core.app.masking import Hidden
from lmcache_core.app.shown_settings import all_secrets
from lmcache_tools.doctor.adapter_trial import Trial
from lmcache_tools.doctor.adapters import adapter_trials
from lmcache_tools.doctor.check_context import CheckContext, Probe
from lmcache_tools.doctor.compute_speed import ComputeSpeed, measured_speed
from lmcache_tools.doctor.devices import devices
from lmcache_tools.doctor.engine_pages import engine_pages
from lmcache_tools.doctor.folders import folders
from lmcache_tools.doctor.huge_pages import huge_pages
from lmcache_tools.doctor.l1_file import l1_file
from lmcache_tools.doctor.limits import limits
from lmcache_tools.doctor.memory import memory
from lmcache_tools.doctor.offer_checks import offer_checks
from lmcache_tools.doctor.plugin_faults import configuration_faults, plugin_faults
from lmcache_tools.doctor.ports import ports
from lmcache_tools.doctor.probe_result import Level, ProbeResult
from lmcache_tools.doctor.processors import processors
from lmcache_tools.doctor.shared_memory import shared_memory
from lmcache_tools.doctor.software import software
from lmcache_tools.doctor.tiers import Tier, copy_bytes_per_second, estimate_text, tier_results, tiers

PROBES: Final[tuple[Probe, ...]] = (
    software,
    processors,
    memory,
    shared_memory,
    l1_file,
    huge_pages,
    limits,
    ports,
    plugin_faults,
    configuration_faults,
    folders,
    devices,
    engine_pages,
    offer_checks,
)


@dataclass(frozen=True, slots=True)
class Report:
    """`estimate` says how the results of the tiers are worked out."""

    results: tuple[ProbeResult, ...]
    tiers: tuple[Tier, ...]
    estimate: str

    @property
    def failed(self) -> bool:
        return any(result.level is Level.FAIL for result in self.results)

    def record(self, context: CheckContext) -> dict[str, Any]:
        """For JSON."""
        model, chunk = context.model, context.chunk
        return {
            "ok": not self.failed,
            "results": [result.record() for result in self.results],
            "model": model
            and chunk
            and {
                "name": model.name,
                "layers": model.layers,
                "dtype": model.dtype,
                "is_mla": model.is_mla,
                "parameters": model.parameters,
                "bytes_per_token": chunk.bytes_per_token,
                "chunk_tokens": chunk.tokens,
                "chunk_bytes": chunk.chunk_bytes,
                "shards": chunk.shards,
                "remark": model.remark or None,
            },
            "tiers": [tier.record() for tier in self.tiers],
            "estimate": self.estimate,
        }


def run_checks(context: CheckContext, flops: float | None, tries_adapters: bool) -> Report:
    """`flops`: what the engine reaches, in operations per second; measured here unless given.  Opens every adapter and
    stores something in it, if `tries_adapters`."""
    results = [result for probe in PROBES for result in _looked(probe, context)]
    results += context.unusable
    trials: list[Trial | None] = []
    if tries_adapters:
        for result, trial in adapter_trials(context):
            results.append(result)
            trials.append(trial)
    hidden = Hidden(all_secrets(context.settings, context.plugins))
    speed = ComputeSpeed(flops, "--flops") if flops else measured_speed() if context.model else None
    found = tiers(context, trials, copy_bytes_per_second(), speed)
    shown = tuple(_without(hidden, result) for result in (*results, *tier_results(found)))
    return Report(shown, tuple(found), estimate_text(context, speed))


def _without(hidden: Hidden, result: ProbeResult) -> ProbeResult:
    """What plugins and libraries say of a failure may quote a secret."""
    return replace(
        result,
        text=hidden.text(result.text),
        remedy=hidden.text(result.remedy),
        fix=hidden.text(result.fix),
    )


def _looked(probe: Probe, context: CheckContext) -> Iterator[ProbeResult]:
    try:
        yield from probe(context)
    except OSError as error:
        name = probe.__name__.replace("_", " ")
        yield ProbeResult(
            name, Level.WARN, f"could not be looked at: {error}", "run it as the user that runs the server"
        )
