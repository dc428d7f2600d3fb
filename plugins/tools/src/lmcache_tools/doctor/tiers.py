"""What fits into each tier, and whether loading a chunk from it beats computing it again."""

from __future__ import annotations

import mmap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from lmcache_tools.doctor.adapter_places import adapter_capacity
from lmcache_tools.doctor.adapter_trial import Trial
from lmcache_tools.doctor.check_context import CheckContext
from lmcache_tools.doctor.compute_speed import ComputeSpeed
from lmcache_tools.doctor.probe_result import Level, ProbeResult
from lmcache_tools.quantities import count_text, seconds_text, size_text

_COPY_BYTES: Final = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Tier:
    """`load_seconds` is for one chunk, all shards one after the other; None where it was not measured."""

    name: str
    capacity_bytes: int | None
    tokens: int | None
    load_seconds: float | None
    result: str
    times_faster: float | None = None

    def record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def copy_bytes_per_second() -> float:
    """Of one thread, from memory to memory."""
    with (
        mmap.mmap(-1, _COPY_BYTES) as source,
        mmap.mmap(-1, _COPY_BYTES) as target,
        memoryview(source) as read,
        memoryview(target) as written,
    ):
        written[:] = read  # the first time pages are made, too
        started = time.perf_counter()
        written[:] = read
        return _COPY_BYTES / (time.perf_counter() - started)


def tiers(
    context: CheckContext, trials: Sequence[Trial | None], copy_rate: float, speed: ComputeSpeed | None
) -> list[Tier]:
    """L1, and each adapter in its order.  `trials` are those of the adapters, or none at all."""
    rates: list[float | None] = [copy_rate]
    rates += [trial.load_bytes_per_second if trial else None for trial in trials] or [None] * len(context.adapters)
    names = ["L1", *(spec.name for spec in context.adapters)]
    reported = [trial.capacity_bytes if trial else None for trial in trials] or [None] * len(context.adapters)
    asked = [bound.bytes if (bound := adapter_capacity(spec)) else None for spec in context.adapters]
    capacities = [context.l1_bytes, *(own or given for own, given in zip(reported, asked, strict=True))]
    return [_tier(context, *each, speed) for each in zip(names, capacities, rates, strict=True)]


def tier_results(found: Sequence[Tier]) -> list[ProbeResult]:
    """A tier that only costs is worth a warning."""
    return [
        ProbeResult(
            f"tier {tier.name}",
            Level.WARN,
            tier.result,
            "leave it out, or make it faster; `--flops` says what the engine really reaches",
        )
        for tier in found
        if tier.times_faster is not None and tier.times_faster < 1
    ]


def estimate_text(context: CheckContext, speed: ComputeSpeed | None) -> str:
    """How the time to compute a chunk again is known."""
    if context.model is None:
        return "give --model for tokens per tier, and for what a hit saves"
    if speed is None:
        return "give --flops to compare with computing again: neither numpy nor torch is installed to measure it"
    seconds = context.model.prefill_flops(context.settings.chunk_size) / speed.flops
    return (
        f"computing a chunk again takes about {seconds_text(seconds)}: 2 x {count_text(context.model.parameters)} "
        f"parameters x {context.settings.chunk_size} tokens at {speed.flops / 1e12:.3g} TFLOP/s ({speed.source}); attention, "
        "which makes long prompts dearer, is left out"
    )


def _tier(
    context: CheckContext, name: str, capacity: int | None, rate: float | None, speed: ComputeSpeed | None
) -> Tier:
    chunk = context.chunk
    tokens = chunk.tokens_in(capacity) if chunk and capacity is not None else None
    seconds = chunk.chunk_bytes / rate if chunk and rate else None
    if seconds is None or speed is None or context.model is None:
        return Tier(name, capacity, tokens, seconds, "not known" if seconds is None else "nothing to compare with")
    again = context.model.prefill_flops(context.settings.chunk_size) / speed.flops
    faster = again / seconds
    words = "worth it" if faster >= 1 else "not worth it"
    how = f"{faster:.3g} times faster" if faster >= 1 else f"{1 / faster:.3g} times slower"
    return Tier(name, capacity, tokens, seconds, f"{words}: {how} than computing it again", faster)


def tier_row(tier: Tier) -> tuple[str, ...]:
    """For a table."""
    return (
        tier.name,
        "no limit" if tier.capacity_bytes is None else size_text(tier.capacity_bytes),
        "-" if tier.tokens is None else count_text(tier.tokens),
        "-" if tier.load_seconds is None else seconds_text(tier.load_seconds),
        tier.result,
    )
