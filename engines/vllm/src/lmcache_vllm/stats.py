"""What the connector counts: numbers by name, that add up over workers, steps and intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

COUNTERS: Final[Mapping[str, str]] = {
    "lookups": "Lookups that were sent",
    "lookup_seconds": "Time from sending a lookup to its answer, added up",
    "lookup_tokens": "Tokens that were asked for",
    "hit_tokens": "Tokens that the server had",
    "used_tokens": "Tokens that were ordered to be loaded, those that vLLM had itself left out",
    "skipped_requests": "Requests that are not cached",
    "failed_lookups": "Lookups without an answer in time, or with an error",
    "lost_servers": "Times that the server went away",
    "store_bytes": "Bytes that workers stored",
    "store_seconds": "Time that workers spent on stores, added up",
    "stores": "Stores that were done",
    "failed_stores": "Stores that were abandoned",
    "load_bytes": "Bytes that workers loaded",
    "load_seconds": "Time that workers spent on loads, added up",
    "loads": "Loads that were done",
    "failed_loads": "Loads that failed, so that their tokens are computed",
    "blend_requests": "Finished requests that were blended",
    "blend_skipped_requests": "Finished requests that were to be blended, and were not",
    "blend_reused_tokens": "Tokens of blends that were used as they were loaded, approximate ones among them",
    "blend_recomputed_tokens": "Tokens of blends that were loaded and computed again",
    "blend_gap_tokens": "Tokens of blends that were computed because nothing was loaded for them",
    "blend_kept_tokens": "Tokens of blends that were loaded as an earlier turn of the conversation has left them",
    "blend_failures": "Blends that failed, so that their tokens are computed",
    "blend_seconds": "Time from the order to load for a blend to its end, added up",
}
"""Every name and its meaning."""


def split_label(label: str) -> tuple[str, str]:
    """The name in COUNTERS, and the reason that divides it; empty if there is none."""
    name, _, reason = label.partition(":")
    return name, reason


def summary(counts: Mapping[str, float]) -> dict[str, int | float]:
    """A few figures for a line of a log: everything added up, times and bytes as speeds."""
    totals: dict[str, float] = {}
    for label, amount in counts.items():
        name, _ = split_label(label)
        totals[name] = totals.get(name, 0) + amount
    shown: dict[str, int | float] = {
        name: int(totals[name]) for name in COUNTERS if name in totals and not name.endswith("_seconds")
    }
    for kind in ("store", "load"):
        if totals.get(f"{kind}_seconds"):
            shown[f"{kind}_gb_per_second"] = round(totals.get(f"{kind}_bytes", 0) / totals[f"{kind}_seconds"] / 1e9, 3)
    answers = totals.get("lookups", 0) - totals.get("failed_lookups", 0)
    if totals.get("lookup_seconds") and answers > 0:
        shown["lookup_ms"] = round(totals["lookup_seconds"] / answers * 1e3, 3)
    return shown


class Counters:
    """Counts of one process since they were last taken. One thread adds and takes, or the caller locks."""

    def __init__(self) -> None:
        self._counts: dict[str, float] = {}

    def add(self, name: str, amount: float = 1, reason: str = "") -> None:
        """`reason` divides a count: it is kept as `name:reason`. Raises KeyError for a name that is not in COUNTERS."""
        COUNTERS[name]
        label = f"{name}:{reason}" if reason else name
        self._counts[label] = self._counts.get(label, 0) + amount

    def take(self) -> dict[str, float]:
        """What was counted since the last call."""
        counts, self._counts = self._counts, {}
        return counts
