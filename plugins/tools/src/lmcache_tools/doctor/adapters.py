"""Does each adapter that is configured work from here, and how fast?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lmcache_client.errors import LMCacheError
from lmcache_core.app.adapter_specs import AdapterSpec
from lmcache_core.app.plugins.plugin_fault import describe
from lmcache_tools.doctor.adapter_trial import Trial, try_adapter
from lmcache_tools.doctor.check_context import CheckContext
from lmcache_tools.doctor.probe_result import Level, ProbeResult
from lmcache_tools.quantities import seconds_text, size_text

_OBJECT_BYTES: Final = 4 * 2**20
"""Where no model says how large objects are."""
_OBJECT_BYTES_MAX: Final = 256 * 2**20


def adapter_trials(context: CheckContext) -> Iterator[tuple[ProbeResult, Trial | None]]:
    """What was found of each, in their order; a trial only of those that work."""
    size = min(context.chunk.object_bytes if context.chunk else _OBJECT_BYTES, _OBJECT_BYTES_MAX)
    for spec in context.adapters:
        yield _tried(context, spec, size)


def _tried(context: CheckContext, spec: AdapterSpec, object_bytes: int) -> tuple[ProbeResult, Trial | None]:
    probe = f"adapter {spec.name}"
    try:
        trial = try_adapter(spec, context.plugins, object_bytes, context.settings.l2_timeout_seconds)
    except LMCacheError as error:
        return ProbeResult(probe, Level.FAIL, str(error), "fix its settings or remove the adapter"), None
    except Exception as error:  # noqa: BLE001 - a plugin's boundary
        remedy = f"tell its author: lmcache plugins check {spec.offer.name} shows which requirement it breaks"
        return ProbeResult(probe, Level.FAIL, f"it raised {describe(error)}", remedy), None
    facts = {
        "object_bytes": trial.object_bytes,
        "open_seconds": trial.open_seconds,
        "store_seconds": trial.store_seconds,
        "lookup_seconds": trial.lookup_seconds,
        "load_seconds": trial.load_seconds,
        "was_deleted": trial.was_deleted,
        "lossy_serdes": list(trial.lossy),
    }
    verified = "byte for byte"
    if trial.lossy:
        verified = (
            f"whole and under its own key; {' and '.join(trial.lossy)} changes numbers, so they were not compared"
        )
    text = (
        f"an object of {size_text(object_bytes)} is stored in {seconds_text(trial.store_seconds)}, found in "
        f"{seconds_text(trial.lookup_seconds)} and loaded in {seconds_text(trial.load_seconds)} "
        f"({size_text(trial.load_bytes_per_second)}/s), {verified}"
    )
    if trial.was_deleted:
        return ProbeResult(probe, Level.OK, text, facts=facts), trial
    left = "; the objects of this trial (model lmcache-doctor) stay there, because it cannot delete"
    return ProbeResult(probe, Level.OK, text + left, facts=facts), trial
