"""What a replay found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class ReplayOutcome:
    path: str
    lookups: int = 0
    asked_chunks: int = 0
    compared_chunks: int = 0
    """Of the asked ones, those of lookups whose answer was recorded."""
    recorded_hits: int = 0
    replayed_hits: int = 0
    """Of the compared ones."""
    differing_lookups: int = 0
    verified_chunks: int = 0
    wrong_chunks: int = 0
    stored_chunks: int = 0
    seconds: float = 0.0
    lookup_seconds: list[float] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        """Of the lookups' seconds; 0 where there was none."""
        ordered = sorted(self.lookup_seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "path": self.path,
            "lookups": self.lookups,
            "asked_chunks": self.asked_chunks,
            "compared_chunks": self.compared_chunks,
            "recorded_hits": self.recorded_hits,
            "replayed_hits": self.replayed_hits,
            "recorded_hit_rate": _share(self.recorded_hits, self.compared_chunks),
            "replayed_hit_rate": _share(self.replayed_hits, self.compared_chunks),
            "differing_lookups": self.differing_lookups,
            "verified_chunks": self.verified_chunks,
            "wrong_chunks": self.wrong_chunks,
            "stored_chunks": self.stored_chunks,
            "seconds": self.seconds,
            "lookup_seconds_p50": self.percentile(0.5),
            "lookup_seconds_p99": self.percentile(0.99),
        }

    def as_text(self) -> str:
        recorded, replayed = (
            _percent(_share(hits, self.compared_chunks)) for hits in (self.recorded_hits, self.replayed_hits)
        )
        rate = self.lookups / self.seconds if self.seconds else 0.0
        rows = [
            ("lookups", f"{self.lookups:,} in {self.seconds:.1f} s ({rate:,.0f} per second)"),
            ("hit", f"{replayed} of {self.compared_chunks:,} chunks; recorded: {recorded}"),
            ("differing", f"{self.differing_lookups:,} lookups hit more or fewer chunks than recorded"),
            ("verified", f"{self.verified_chunks:,} chunks byte by byte, {self.wrong_chunks:,} of them wrong"),
            ("stored", f"{self.stored_chunks:,} chunks"),
            (
                "latency",
                f"{_ms(self.percentile(0.5))} at the median, {_ms(self.percentile(0.99))} at the 99th percentile",
            ),
        ]
        return "\n".join(f"{name:<10} {text}" for name, text in rows)


def _share(part: int, of: int) -> float | None:
    return part / of if of else None


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"
