"""Summaries for people and for programs."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, Final

from lmcache_observability.trace.summary import TraceSummary

_SHOWN: Final = 8
"""Models and salts that are listed one by one."""


def info_json(summary: TraceSummary) -> dict[str, Any]:
    return {
        "version": 1,
        "path": summary.path,
        "level": summary.level,
        "server_version": summary.server_version,
        "chunk_tokens": summary.chunk_tokens,
        "first": summary.first,
        "last": summary.last,
        "seconds": summary.seconds,
        "records": dict(summary.records),
        "models": dict(summary.models),
        "salts": dict(summary.salts),
        "prompt_tokens": summary.prompt_tokens,
        "requested_chunks": summary.requested_chunks,
        "distinct_chunks": summary.distinct_chunks,
        "hit_chunks": summary.hit_chunks,
        "l2_hit_chunks": summary.l2_hit_chunks,
        "hit_rate": summary.hit_rate,
        "ceiling": summary.ceiling,
        "stored_chunks": summary.stored_chunks,
        "stored_bytes": summary.stored_bytes,
        "retrieved_chunks": summary.retrieved_chunks,
        "retrieved_bytes": summary.retrieved_bytes,
        "lost_records": summary.lost_records,
        "torn_bytes": summary.torn_bytes,
        "closed": summary.closed,
    }


def info_text(summary: TraceSummary) -> str:
    rows = [
        ("file", summary.path),
        ("recorded", f"{_shown(summary.level) or '?'} by server {_shown(summary.server_version) or '?'}"),
        ("time", _span(summary)),
        ("records", _counts(summary.records)),
        ("models", _counts(summary.models)),
        ("salts", _counts(Counter({salt or "_default": count for salt, count in summary.salts.items()}))),
        ("asked for", f"{summary.requested_chunks:,} chunks, {summary.distinct_chunks:,} of them different"),
        ("hit", f"{_percent(summary.hit_rate)} ({summary.hit_chunks:,} chunks, {summary.l2_hit_chunks:,} from L2)"),
        ("ceiling", f"{_percent(summary.ceiling)} (a cache that forgets nothing, empty at the start)"),
        ("stored", f"{summary.stored_chunks:,} chunks, {_mib(summary.stored_bytes)}"),
        ("retrieved", f"{summary.retrieved_chunks:,} chunks, {_mib(summary.retrieved_bytes)}"),
        ("missing", _missing(summary)),
    ]
    return "\n".join(f"{name:<10} {text}" for name, text in rows)


def _span(summary: TraceSummary) -> str:
    if summary.first is None:
        return "nothing was recorded"
    began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(summary.first))
    return f"{summary.seconds:,.1f} s from {began}"


def _counts(counts: Counter[str]) -> str:
    shown = [f"{_shown(name)} {count:,}" for name, count in counts.most_common(_SHOWN)]
    more = len(counts) - len(shown)
    return ", ".join(shown) + (f", and {more} more" if more > 0 else "") or "none"


def _shown(name: str) -> str:
    """Names come from engines, and files from third parties: control characters are shown as escapes."""
    return ascii(name)[1:-1][:60]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _mib(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB"


def _missing(summary: TraceSummary) -> str:
    parts = []
    if summary.lost_records:
        parts.append(f"{summary.lost_records:,} records could not be written")
    if summary.torn_bytes:
        parts.append(f"{summary.torn_bytes:,} bytes at the end are torn")
    if not summary.closed:
        parts.append("the recording was not ended in order, or goes on")
    return "; ".join(parts) or "nothing"
