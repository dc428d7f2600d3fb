"""All probes, one after the other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from lmcache_core.app.masking import Hidden
from lmcache_core.app.shown_settings import all_secrets
from lmcache_tools.doctor.adapter_trial import Trial
from lmcache_tools.doctor.adapters import adapter_trials
from lmcache_tools.doctor.case import Case, Probe
from lmcache_tools.doctor.compute_speed import ComputeSpeed, measured_speed
from lmcache_tools.doctor.devices import devices
from lmcache_tools.doctor.finding import Finding, Level
from lmcache_tools.doctor.folders import folders
from lmcache_tools.doctor.huge_pages import huge_pages
from lmcache_tools.doctor.l1_file import l1_file
from lmcache_tools.doctor.limits import limits
from lmcache_tools.doctor.memory import memory
from lmcache_tools.doctor.offer_checks import offer_checks
from lmcache_tools.doctor.plugin_faults import configuration_faults, plugin_faults
from lmcache_tools.doctor.ports import ports
from lmcache_tools.doctor.processors import processors
from lmcache_tools.doctor.shared_memory import shared_memory
from lmcache_tools.doctor.software import software
from lmcache_tools.doctor.tiers import Tier, copy_bytes_per_second, estimate_text, tier_findings, tiers

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
    offer_checks,
)


@dataclass(frozen=True, slots=True)
class Report:
    """`estimate` says how the verdicts of the tiers are worked out."""

    findings: tuple[Finding, ...]
    tiers: tuple[Tier, ...]
    estimate: str

    @property
    def failed(self) -> bool:
        return any(finding.level is Level.FAIL for finding in self.findings)

    def record(self, case: Case) -> dict[str, Any]:
        """For JSON."""
        model, chunk = case.model, case.chunk
        return {
            "ok": not self.failed,
            "findings": [finding.record() for finding in self.findings],
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


def examine(case: Case, flops: float | None, tries_adapters: bool) -> Report:
    """`flops`: what the engine reaches, in operations per second; measured here unless given.  Opens every adapter and
    stores something in it, if `tries_adapters`."""
    findings = [finding for probe in PROBES for finding in _looked(probe, case)]
    findings += case.unusable
    trials: list[Trial | None] = []
    if tries_adapters:
        for finding, trial in adapter_trials(case):
            findings.append(finding)
            trials.append(trial)
    hidden = Hidden(all_secrets(case.settings, case.plugins, os.environ))
    speed = ComputeSpeed(flops, "--flops") if flops else measured_speed() if case.model else None
    found = tiers(case, trials, copy_bytes_per_second(), speed)
    shown = tuple(_without(hidden, finding) for finding in (*findings, *tier_findings(found)))
    return Report(shown, tuple(found), estimate_text(case, speed))


def _without(hidden: Hidden, finding: Finding) -> Finding:
    """What plugins and libraries say of a failure may quote a secret."""
    return replace(
        finding,
        text=hidden.text(finding.text),
        remedy=hidden.text(finding.remedy),
        fix=hidden.text(finding.fix),
    )


def _looked(probe: Probe, case: Case) -> Iterator[Finding]:
    try:
        yield from probe(case)
    except OSError as error:
        name = probe.__name__.replace("_", " ")
        yield Finding(name, Level.WARN, f"could not be looked at: {error}", "run it as the user that runs the server")
